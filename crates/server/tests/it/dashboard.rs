//! The dashboard as a browser sees it: logging in, every page for every role, what is masked, and pages that stay small.

use super::{Reply, Server};
use axum::body::Body;
use axum::http::Request;
use redrive_core::access::{Access, Grant};
use redrive_core::time::Span;
use redrive_server::{Config, LoginCodes, pages};
use scraper::{Html, Selector};
use std::sync::Arc;

/// A browser with the cookies it was given.
pub(crate) struct Browser<'a> {
    server: &'a Server,
    cookies: String,
}

impl<'a> Browser<'a> {
    /// A browser that has not logged in.
    pub(crate) const fn new(server: &'a Server) -> Self {
        Self { server, cookies: String::new() }
    }

    /// A browser that has logged in with these roles.
    pub(crate) async fn with(server: &'a Server, roles: &[Grant], queues: &[&str]) -> Self {
        let token = server.token(roles, queues).await;
        let mut browser = Self::new(server);
        let reply = browser.post("/login", &[("token", &token)]).await;
        assert_eq!(reply.status.as_u16(), 303, "{}", reply.text);
        browser
    }

    /// A browser of somebody who may do everything.
    pub(crate) async fn admin(server: &'a Server) -> Self {
        Self::with(server, &[Grant::Admin], &[]).await
    }

    async fn send(&mut self, request: Request<Body>) -> Reply {
        let reply = self.server.exchange(request).await;
        for cookie in reply.headers.get_all("set-cookie") {
            let cookie = cookie.to_str().unwrap().split(';').next().unwrap().to_owned();
            let name = format!("{}=", cookie.split('=').next().unwrap());
            let kept =
                self.cookies.split("; ").filter(|known| !known.is_empty() && !known.starts_with(&name));
            self.cookies = kept.map(str::to_owned).chain([cookie.clone()]).collect::<Vec<_>>().join("; ");
        }
        reply
    }

    fn request(&self, method: &str, path: &str) -> axum::http::request::Builder {
        let request = Request::builder().method(method).uri(path).header("host", "localhost");
        if self.cookies.is_empty() { request } else { request.header("cookie", &self.cookies) }
    }

    /// Asks for a page.
    pub(crate) async fn get(&mut self, path: &str) -> Reply {
        let request = self.request("GET", path).body(Body::empty()).unwrap();
        self.send(request).await
    }

    /// Asks for a page that must be there.
    pub(crate) async fn page(&mut self, path: &str) -> String {
        let reply = self.get(path).await;
        assert_eq!(reply.status.as_u16(), 200, "{path}: {}", reply.text);
        reply.text
    }

    /// Sends a form.
    pub(crate) async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> Reply {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = self.request("POST", path).header("content-type", "application/x-www-form-urlencoded");
        let request = request.header("origin", "http://localhost").body(Body::from(body)).unwrap();
        self.send(request).await
    }

    /// Sends a form that must succeed, and returns where it leads.
    pub(crate) async fn submit(&mut self, path: &str, fields: &[(&str, &str)]) -> String {
        let reply = self.post(path, fields).await;
        assert_eq!(reply.status.as_u16(), 303, "{path} {fields:?}: {}", reply.text);
        reply.headers["location"].to_str().unwrap().to_owned()
    }
}

/// The text of the first element that matches, with single blanks.
pub(crate) fn text(page: &str, selector: &str) -> String {
    let html = Html::parse_document(page);
    let found = html.select(&Selector::parse(selector).unwrap()).next();
    let text = found.unwrap_or_else(|| panic!("no {selector} in {page}")).text().collect::<String>();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// How many elements match.
pub(crate) fn count(page: &str, selector: &str) -> usize {
    Html::parse_document(page).select(&Selector::parse(selector).unwrap()).count()
}

/// A server with a letter, an operation on it and everything else that has a page.
pub(crate) struct Office {
    pub(crate) server: Server,
    pub(crate) letter: String,
    pub(crate) group: String,
    pub(crate) operation: String,
}

impl Office {
    pub(crate) async fn open() -> Self {
        let server = Server::start().await;
        let message = r#"{"kind":"charge","payload":{"order":4411,"password":"hunter22"},
            "headers":{"authorization":"Bearer hunter22hunter22"},"tags":["eu"]}"#;
        let letter = server.letter(message).await;
        server.post("/api/v1/markers", r#"{"text":"deploy 1.4.2"}"#).await;
        let group = server.get("/api/v1/groups").await["items"][0]["id"].as_str().unwrap().to_owned();
        let mut browser = Browser::admin(&server).await;
        let operation = start(&mut browser, "review", &format!("id:{letter}")).await;
        let operation = operation.rsplit('/').next().unwrap().to_owned();
        Self { server, letter, group, operation }
    }

    /// Every page, with ids that exist.
    pub(crate) fn pages(&self) -> Vec<String> {
        let with_ids = |(path, methods): (&str, &[&str])| {
            let path = match path {
                "/groups/{id}" => path.replace("{id}", &self.group),
                "/operations/{id}" => path.replace("{id}", &self.operation),
                "/act" => format!("/act?act=resolve&filter=id%3A{}", self.letter),
                "/find" => format!("/find?id={}", self.letter),
                _ => path.replace("{id}", &self.letter).replace("{queue}", "q"),
            };
            methods.contains(&"GET").then_some(path)
        };
        pages().into_iter().filter_map(with_ids).collect()
    }
}

/// Starts an operation as a person does: looks at the preview and sends its form.
pub(crate) async fn start(browser: &mut Browser<'_>, act: &str, filter: &str) -> String {
    let query = form_urlencoded::Serializer::new(String::new())
        .extend_pairs([("act", act), ("filter", filter)])
        .finish();
    let page = browser.page(&format!("/act?{query}")).await;
    let html = Html::parse_document(&page);
    let hidden = Selector::parse("form[action='/act'] input[type=hidden]").unwrap();
    let value = |name: &'static str| {
        html.select(&hidden)
            .find(|input| input.attr("name") == Some(name))
            .and_then(|input| input.attr("value"))
            .unwrap()
            .to_owned()
    };
    let sent = ["filter", "act_json", "token", "bound", "operation"].map(|name| (name, value(name)));
    let mut fields: Vec<(&str, &str)> = sent.iter().map(|(name, value)| (*name, value.as_str())).collect();
    fields.push(("reason", "because"));
    let place = browser.submit("/act", &fields).await;
    assert_eq!(browser.submit("/act", &fields).await, place, "sending the form twice starts it once");
    place
}

#[tokio::test]
async fn every_page_opens_for_everybody_who_may_look() {
    let office = Office::open().await;
    let script =
        Selector::parse("script:not([src]), [style], style, [onclick], [onerror], [onload]").unwrap();
    for grant in Grant::ALL {
        let looks = !matches!(grant, Grant::Producer | Grant::Worker);
        let mut browser = Browser::with(&office.server, &[*grant], &[]).await;
        for path in office.pages() {
            let reply = browser.get(&path).await;
            let status = reply.status.as_u16();
            let operates = path.starts_with("/act");
            let edits = path.ends_with("/edit");
            let expected = match grant {
                _ if path == "/login" => 200,
                _ if path.starts_with("/find") && looks => 303,
                Grant::MaskedViewer | Grant::Viewer if operates || edits => 403,
                Grant::Operator if edits => 403,
                // Everybody may see who they are.
                Grant::Producer | Grant::Worker if path == "/settings" => 200,
                Grant::Producer | Grant::Worker => 403,
                Grant::MaskedViewer | Grant::Viewer | Grant::Operator | Grant::Editor | Grant::Admin => 200,
            };
            assert_eq!(status, expected, "{grant} {path}: {}", reply.text);
            if status == 303 {
                continue;
            }
            assert!(reply.headers["content-type"].to_str().unwrap().starts_with("text/html"), "{path}");
            let html = Html::parse_document(&reply.text);
            assert_eq!(html.select(&script).count(), 0, "{path} has inline script or style");
            assert!(reply.text.len() < 100_000, "{path} has {} bytes", reply.text.len());
            let csp = reply.headers["content-security-policy"].to_str().unwrap();
            assert!(csp.contains("script-src 'self'") && !csp.contains("unsafe"), "{csp}");
        }
    }
}

#[tokio::test]
async fn what_a_role_does_not_allow_is_not_offered() {
    let office = Office::open().await;
    let letter = format!("/dlq/{}", office.letter);
    for (grant, acts, edits) in
        [(Grant::Viewer, false, false), (Grant::Operator, true, false), (Grant::Editor, true, true)]
    {
        let mut browser = Browser::with(&office.server, &[grant], &[]).await;
        let page = browser.page(&letter).await;
        assert_eq!(count(&page, "button[value=retry]") > 0, acts, "{grant}");
        assert_eq!(count(&page, "a[href$='/edit']") > 0, edits, "{grant}");
        assert_eq!(count(&page, "button[value=purge]"), 0, "only an admin purges");
        let list = browser.page("/dlq").await;
        assert_eq!(count(&list, "input[name=id]") > 0, acts, "{grant}");
        assert_eq!(count(&browser.page("/settings").await, "button[value=create]"), 0);
    }
    let mut limited = Browser::with(&office.server, &[Grant::Admin], &["other"]).await;
    assert_eq!(limited.get("/groups").await.headers["location"], "/dlq");
    let list = limited.page("/dlq").await;
    assert_eq!(count(&list, "[data-row]"), 0, "letters of other queues are not shown");
    assert_eq!(count(&list, "nav a[href='/groups']"), 0, "what cannot be opened is not in the navigation");
    assert_eq!(limited.get(&letter).await.status.as_u16(), 403);
}

#[tokio::test]
async fn somebody_unknown_is_sent_to_the_login_and_back() {
    let office = Office::open().await;
    let mut browser = Browser::new(&office.server);
    for path in office.pages().iter().filter(|path| *path != "/login") {
        let reply = browser.get(path).await;
        assert_eq!(reply.status.as_u16(), 303, "{path}");
        assert!(reply.headers["location"].to_str().unwrap().starts_with("/login?next=%2F"), "{path}");
    }
    for (path, methods) in pages() {
        if methods.contains(&"POST") && !["/login", "/logout", "/theme"].contains(&path) {
            let path = path.replace("{id}", &office.letter).replace("{queue}", "q");
            let reply = browser.post(&path, &[("act", "resolve")]).await;
            assert_eq!(reply.headers["location"], "/login", "{path}");
        }
    }
    let wrong = browser.post("/login", &[("token", "rdt_nonsense")]).await;
    assert_eq!(wrong.status.as_u16(), 401);
    assert!(text(&wrong.text, "[role=alert]").contains("did not work"));
    let token = office.server.token(&[Grant::Viewer], &[]).await;
    for (next, place) in [
        ("/audit?verify=1", "/audit?verify=1"),
        ("https://evil.example/", "/groups"),
        ("//evil.example", "/groups"),
    ] {
        assert_eq!(browser.submit("/login", &[("token", &token), ("next", next)]).await, place);
    }
    assert!(browser.page("/groups").await.contains("bearer of [Viewer]"));
    assert_eq!(browser.submit("/logout", &[]).await, "/login");
    assert_eq!(browser.get("/groups").await.status.as_u16(), 303);
}

#[tokio::test]
async fn a_link_on_another_site_opens_the_page_after_one_reload() {
    let server = Server::start().await;
    let request = Request::builder().uri("/groups?state=all").header("host", "localhost");
    let request = request.header("sec-fetch-site", "cross-site").header("sec-fetch-mode", "navigate");
    let reply = server.exchange(request.body(Body::empty()).unwrap()).await;
    assert_eq!(reply.status.as_u16(), 200);
    let html = Html::parse_document(&reply.text);
    let refresh = html.select(&Selector::parse("meta[http-equiv=refresh]").unwrap()).next().unwrap();
    assert_eq!(refresh.attr("content"), Some("0; url=/groups?state=all"));
    // The form of another site is refused before anything else.
    let request = Request::builder().method("POST").uri("/logout").header("host", "localhost");
    let reply =
        server.exchange(request.header("sec-fetch-site", "cross-site").body(Body::empty()).unwrap()).await;
    assert_eq!(reply.body["code"], "cross_site");
}

#[tokio::test]
async fn a_code_logs_in_once() {
    let codes = LoginCodes::default();
    let server = Server::with(Config { login_codes: codes.clone(), ..Config::default() }).await;
    let code = codes.issue(Arc::new(Access::everything("ada"))).unwrap();
    let mut browser = Browser::new(&server);
    let reply = browser.get(&format!("/login?code={code}&next=/queues")).await;
    assert_eq!((reply.status.as_u16(), reply.headers["location"].to_str().unwrap()), (303, "/queues"));
    assert!(browser.page("/queues").await.contains("ada"));
    let mut other = Browser::new(&server);
    assert_eq!(other.get(&format!("/login?code={code}")).await.status.as_u16(), 401);
    assert_eq!(other.get("/login?code=guess").await.status.as_u16(), 401);
}

#[tokio::test]
async fn the_theme_is_kept_and_assets_are_kept_for_ever() {
    let server = Server::start().await;
    let mut browser = Browser::admin(&server).await;
    assert_eq!(count(&browser.page("/groups").await, "html[data-theme=system]"), 1);
    assert_eq!(browser.submit("/theme", &[("theme", "dark"), ("back", "/queues")]).await, "/queues");
    let page = browser.page("/groups").await;
    assert_eq!(count(&page, "html[data-theme=dark]"), 1);
    let html = Html::parse_document(&page);
    let link = Selector::parse("link[href], script[src]").unwrap();
    let mut assets = 0;
    for asset in html.select(&link).filter_map(|e| e.attr("href").or(e.attr("src"))) {
        let reply = browser.get(asset).await;
        assert_eq!(reply.status.as_u16(), 200, "{asset}");
        assert!(reply.headers["cache-control"].to_str().unwrap().contains("immutable"), "{asset}");
        assets += 1;
    }
    assert_eq!(assets, 3, "style, script, icon");
}

#[tokio::test]
async fn what_is_masked_appears_on_no_page_until_it_is_revealed() {
    let office = Office::open().await;
    let mut browser = Browser::admin(&office.server).await;
    for path in office.pages() {
        let page = browser.get(&path).await.text;
        assert!(!page.contains("hunter22"), "{path}");
    }
    for form in ["tree", "raw", "hex"] {
        assert!(
            !browser.page(&format!("/dlq/{}?payload={form}", office.letter)).await.contains("hunter22"),
            "{form}"
        );
    }
    let path = format!("/dlq/{}/reveal", office.letter);
    let mut masked = Browser::with(&office.server, &[Grant::MaskedViewer], &[]).await;
    assert_eq!(masked.post(&path, &[("reason", "curious")]).await.status.as_u16(), 403);
    let page = browser.post(&path, &[("reason", "ticket 7")]).await.text;
    assert!(page.contains("hunter22"));
    let audit = browser.page("/audit").await;
    assert_eq!(text(&audit, "tbody tr:first-child td:nth-child(4) b"), "reveal");
    assert!(text(&audit, "tbody tr:first-child").contains("ticket 7"));
}

#[tokio::test]
async fn the_overview_says_what_is_wrong() {
    let office = Office::open().await;
    let mut browser = Browser::admin(&office.server).await;
    let said = text(&browser.page("/").await, "#diagnosis");
    assert!(said.starts_with("q is failing for one reason. 100 % of the deaths"), "{said}");
    let quiet = Server::start().await;
    let mut browser = Browser::admin(&quiet).await;
    for (path, heading) in [
        ("/", "Nothing has failed yet"),
        ("/groups", "Nothing has failed yet"),
        ("/dlq", "No open dead letter"),
    ] {
        let page = browser.page(path).await;
        assert_eq!(text(&page, ".empty h2"), heading);
        assert_eq!(count(&page, ".empty .copy code"), 1, "{path} teaches with a command");
    }
}

#[tokio::test]
async fn what_is_new_since_the_last_visit_is_marked() {
    let office = Office::open().await;
    let mut browser = Browser::admin(&office.server).await;
    assert_eq!(
        count(&browser.page("/groups").await, ".fresh"),
        0,
        "the first visit has nothing to compare with"
    );
    office.server.clock.advance(Span::from_hours(2));
    office.server.letter(r#"{"kind":"other","payload":"x"}"#).await;
    let page = browser.page("/dlq").await;
    assert_eq!(count(&page, ".fresh"), 1);
    // Within the visit it stays marked.
    assert_eq!(count(&browser.page("/dlq").await, ".fresh"), 1);
}
