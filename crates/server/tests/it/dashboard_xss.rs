//! Hostile text in every stored field: on every page the document has the same shape as with harmless text, so nothing
//! of it became markup.

use super::Server;
use super::dashboard::Browser;
use redrive_core::dead_letter::{Act, ActRequest, Actor};
use redrive_core::failure::{ErrorInfo, FailureReport};
use redrive_core::filter::Filter;
use redrive_core::group::{GroupAct, GroupQuery};
use redrive_core::ids::{MessageId, OperationId};
use redrive_core::message::{NewMessage, Payload};
use redrive_core::operation::OperationSpec;
use redrive_core::store::{LeaseRequest, Settle, Settlement};
use scraper::{ElementRef, Html, Selector};
use serde_json::json;
use std::collections::BTreeSet;

/// Strings that try to leave text, attributes, comments, scripts, styles and addresses.
const HOSTILE: &[&str] = &[
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"><img src=x onerror=alert(1)>",
    "'><svg onload=alert(1)>",
    "\" onmouseover=\"alert(1)",
    "' onfocus='alert(1)' autofocus='",
    "` onclick=`alert(1)`",
    "<svg><script>alert(1)</script></svg>",
    "<svg/onload=alert(1)>",
    "<iframe src=javascript:alert(1)></iframe>",
    "<object data=javascript:alert(1)>",
    "<embed src=javascript:alert(1)>",
    "<a href=javascript:alert(1)>x</a>",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "<form action=https://evil.example><input name=q>",
    "</form><form action=https://evil.example>",
    "<input autofocus onfocus=alert(1)>",
    "<button formaction=https://evil.example>x</button>",
    "<base href=https://evil.example>",
    "<meta http-equiv=refresh content=0;url=https://evil.example>",
    "<link rel=stylesheet href=https://evil.example/x.css>",
    "<style>*{display:none}</style>",
    "</style><b>x</b>",
    "<!-- comment -->",
    "--><b>x</b><!--",
    "<![CDATA[<b>x</b>]]>",
    "<?xml version=\"1.0\"?>",
    "</title><b>x</b>",
    "</textarea><b>x</b>",
    "</pre><b>x</b>",
    "</td></tr></table><b>x</b>",
    "</main></body></html>",
    "<table><tr><td>x",
    "<details open ontoggle=alert(1)>",
    "<video><source onerror=alert(1)>",
    "<math><mi//xlink:href=\"data:x,<script>alert(1)</script>\">",
    "<template><img src=x></template>",
    "<noscript><p title=\"</noscript><img src=x onerror=alert(1)>\">",
    "<select><option>x",
    "<marquee onstart=alert(1)>",
    "<plaintext>",
    "<xmp><b>x</b></xmp>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;alert(1)&#60;/script&#62;",
    "&quot;&gt;&lt;b&gt;",
    "{{ 7 * 7 }}",
    "{% include \"login.html\" %}",
    "${alert(1)}",
    "<%= 7 * 7 %>",
    "<b>bold</b> & <i>more</i>",
    "a\" b='c' d=`e` <f>",
    "\\\"><script>alert(1)</script>",
    "\u{ff1c}script\u{ff1e}alert(1)",
    "\u{202e}<b>reversed</b>",
    "<scr<script>ipt>alert(1)</scr</script>ipt>",
    "<ScRiPt>alert(1)</sCrIpT>",
    "<a title=\"x\"onmouseover=alert(1)>",
    "<img src=\"x` `<script>alert(1)</script>\"` `>",
    "[masked]<b>x</b>[masked:email]",
    "<num> <*> <uuid> <script>",
    "'; DROP TABLE letters; --",
    "%3Cscript%3Ealert(1)%3C/script%3E",
];

/// A store in which text of the outside is in every field that has a page.
async fn office(texts: impl Fn(usize) -> String) -> (Server, Vec<String>, String) {
    let server = Server::start().await;
    let store = &server.store;
    let mut ids = Vec::new();
    for n in 0..HOSTILE.len() {
        let text = texts(n);
        let id = MessageId::new(1_767_225_600_000 + n as u64, [7; 10]);
        let payload = Payload {
            bytes: json!({"k": text, text.clone(): 1}).to_string().into_bytes(),
            content_type: text.clone(),
        };
        let message = NewMessage {
            kind: text.clone(),
            headers: [("x-note".to_owned(), text.clone())].into(),
            tags: [text.clone()].into(),
            key: Some(format!("{n} {text}")),
            context: Some(json!({"repository": text})),
            enqueued_by: Some(text.clone()),
            max_attempts: Some(1),
            ..NewMessage::new(id, "q".parse().unwrap(), payload)
        };
        store.enqueue(vec![message]).await.unwrap().remove(0).unwrap();
        let request = LeaseRequest {
            queues: vec!["q".parse().unwrap()],
            max: 1,
            lease_for: None,
            worker: text.clone(),
            host: Some(text.clone()),
            version: Some(text.clone()),
        };
        let delivery = store.lease(request).await.unwrap().remove(0);
        let error = ErrorInfo {
            error_type: format!("{n} {text}"),
            message: text.clone(),
            code: Some(text.clone()),
            stack: Some(format!("{text}\n    at {text} (src/a.ts:1)")),
            context: vec![text.clone()],
            cause: Some(text.clone()),
        };
        let report = FailureReport {
            error,
            host: Some(text.clone()),
            version: Some(text.clone()),
            step: Some(text.clone()),
            ..FailureReport::default()
        };
        let what = Settle::Fail { failure: Box::new(report.analyse()), policy_override: None };
        store.settle(vec![Settlement { token: delivery.token, what }]).await.unwrap().remove(0).unwrap();
        let actor = Actor { reason: Some(text.clone()), ..Actor::new(text.clone(), "test") };
        let label = Act::Label { add: [text.clone()].into(), remove: [].into() };
        for act in [Act::Note, Act::Assign { to: Some(text.clone()) }, label] {
            let request = ActRequest { id, act, actor: actor.clone(), expected_version: None };
            store.act(vec![request]).await.unwrap().remove(0).unwrap();
        }
        store.mark(text.clone(), actor.clone()).await.unwrap();
        ids.push(id.to_string());
    }
    let groups = store.groups(GroupQuery::default()).await.unwrap().items;
    assert_eq!(groups.len(), HOSTILE.len().min(50), "one group for each");
    for (n, group) in groups.iter().enumerate() {
        let actor = Actor { reason: Some(texts(n)), ..Actor::new(texts(n), "test") };
        store.act_on_group(group.id, GroupAct::Note { text: Some(texts(n)) }, actor.clone()).await.unwrap();
        store.act_on_group(group.id, GroupAct::Assign { to: Some(texts(n)) }, actor).await.unwrap();
    }
    let operation = OperationId::new(MessageId::new(1, [9; 10]));
    let actor = Actor { reason: Some(texts(0)), ..Actor::new(texts(0), "test") };
    store
        .start(OperationSpec::new(operation, Act::Review, Filter::parse("queue:q").unwrap(), actor))
        .await
        .unwrap();
    while store.operation(operation).await.unwrap().stage.is_moving() {
        store.step(operation).await.unwrap();
    }
    take_one(&server, texts(0)).await;
    (server, ids, operation.to_string())
}

/// A worker with a message in hand.
async fn take_one(server: &Server, text: String) {
    let id = MessageId::new(1_767_225_700_000, [8; 10]);
    server
        .store
        .enqueue(vec![NewMessage {
            kind: text.clone(),
            ..NewMessage::new(id, "w".parse().unwrap(), Payload::default())
        }])
        .await
        .unwrap();
    let request = LeaseRequest {
        queues: vec!["w".parse().unwrap()],
        max: 1,
        lease_for: None,
        worker: text.clone(),
        host: Some(text.clone()),
        version: Some(text),
    };
    server.store.lease(request).await.unwrap();
}

/// The elements of a document in order, with the names of their attributes. Marks within text are left out: what varies
/// in a template and the tokens of JSON depend on the text, and their elements have nothing but a class.
fn shape(page: &str) -> Vec<String> {
    let html = Html::parse_document(page);
    let everything = Selector::parse("*").unwrap();
    let is_mark = |element: &ElementRef<'_>| {
        let class = element.attr("class").unwrap_or_default();
        let marks = ["var", "masked", "k", "s", "d", "w", "p", "own", "other", "caret"];
        element.value().name() == "span" && marks.contains(&class) && element.value().attrs().count() == 1
    };
    let describe = |element: ElementRef<'_>| {
        let names: BTreeSet<&str> = element.value().attrs().map(|(name, _)| name).collect();
        format!("{} {names:?}", element.value().name())
    };
    html.select(&everything).filter(|element| !is_mark(element)).map(describe).collect()
}

/// Says where two shapes begin to differ.
fn assert_same(path: &str, bad: &[String], good: &[String]) {
    let differs = (0..bad.len().max(good.len())).find(|n| bad.get(*n) != good.get(*n));
    if let Some(n) = differs {
        let near =
            |shape: &[String]| shape.iter().skip(n.saturating_sub(3)).take(6).cloned().collect::<Vec<_>>();
        panic!("{path} differs at element {n}: {:?} instead of {:?}", near(bad), near(good));
    }
}

/// Addresses that a browser would follow lead nowhere else.
fn check_addresses(path: &str, page: &str) {
    let html = Html::parse_document(page);
    for (selector, name) in
        [("[href]", "href"), ("[src]", "src"), ("[action]", "action"), ("[formaction]", "formaction")]
    {
        for element in html.select(&Selector::parse(selector).unwrap()) {
            let address = element.attr(name).unwrap();
            assert!(
                address.starts_with('/') && !address.starts_with("//") || address.starts_with('#'),
                "{path}: {address}"
            );
        }
    }
}

#[tokio::test]
async fn hostile_text_never_becomes_markup() {
    assert!(HOSTILE.len() >= 60);
    let (hostile, ids, operation) = office(|n| HOSTILE[n % HOSTILE.len()].to_owned()).await;
    let letter = |n: usize| char::from(b'a' + u8::try_from(n % 26).unwrap());
    let (harmless, _, _) = office(|n| format!("harmless {}{}", letter(n / 26), letter(n))).await;
    let mut attacked = Browser::admin(&hostile).await;
    let mut calm = Browser::admin(&harmless).await;
    let mut pages: Vec<String> = [
        "/",
        "/groups",
        "/groups?state=all",
        "/groups?by=type",
        "/groups?by=kind",
        "/groups?by=version",
        "/groups?by=host",
        "/dlq?filter=",
        "/dlq?filter=&cols=status,queue,reason,category,attempts,redrives,priority,owner,dlq,tags,died",
        "/operations",
        "/queues",
        "/queues/q",
        "/breakers",
        "/workers",
        "/audit",
        "/alerts",
        "/settings",
        "/act?act=resolve&filter=queue%3Aq",
    ]
    .map(str::to_owned)
    .into();
    pages.push(format!("/operations/{operation}"));
    pages.extend(
        ids.iter().flat_map(|id| {
            [format!("/dlq/{id}"), format!("/dlq/{id}?payload=raw"), format!("/dlq/{id}/edit")]
        }),
    );
    for path in &pages {
        let (bad, good) = (attacked.page(path).await, calm.page(path).await);
        check_addresses(path, &bad);
        assert_same(path, &shape(&bad), &shape(&good));
        assert!(bad.len() < 100_000, "{path} has {} bytes", bad.len());
    }
    // The groups have other ids in the twin, so their pages are compared in order.
    let of = async |server: &Server| -> Vec<String> {
        let page = server.store.groups(GroupQuery::default()).await.unwrap();
        page.items.iter().map(|group| group.id.to_string()).collect()
    };
    for (bad, good) in of(&hostile).await.iter().zip(of(&harmless).await) {
        let bad = attacked.page(&format!("/groups/{bad}")).await;
        check_addresses("a group", &bad);
        let good = calm.page(&format!("/groups/{good}")).await;
        let tags = |page: &str| shape(page).into_iter().collect::<BTreeSet<_>>();
        let unknown: Vec<String> = tags(&bad).difference(&tags(&good)).cloned().collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
    // What a request carries is echoed as text too.
    for text in HOSTILE {
        let query = form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
        for path in [
            "/dlq?filter=",
            "/groups?q=",
            "/groups?owner=",
            "/act?act=",
            "/find?id=",
            "/login?next=",
            "/audit?cursor=",
        ] {
            let page = attacked.get(&format!("{path}{query}")).await.text;
            let html = Html::parse_document(&page);
            for wrong in [
                "script:not([src^='/assets/'])",
                "img",
                "iframe",
                "object",
                "embed",
                "base",
                "[onerror]",
                "[onload]",
                "[onclick]",
                "[onfocus]",
                "[style]",
            ] {
                assert_eq!(html.select(&Selector::parse(wrong).unwrap()).count(), 0, "{path}{text}: {wrong}");
            }
            check_addresses(path, &page);
        }
    }
}
