//! Whether everybody can use the pages: axe-core finds nothing serious on any of them, light or dark. It comes from its
//! npm package when the test first runs, is kept in the target directory, and is not part of the product.

use super::Browser;
use super::office::Office;
use crate::support::text;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::path::Path;
use std::process::Command;

/// The version, and what its file must hash to.
const AXE: &str = "axe-core@4.14.0";
const AXE_SHA256: &str = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878";

/// The script of axe-core.
fn axe() -> String {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{AXE}.js"));
    if !kept.exists() {
        let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let run = |program: &str, args: &[&str]| {
            let ended = Command::new(program).args(args).current_dir(scratch.path()).output();
            let ended =
                ended.unwrap_or_else(|error| panic!("{program}: {error}; `scripts/setup` installs it"));
            assert!(ended.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&ended.stderr));
        };
        run("npm", &["pack", "--silent", AXE]);
        run("tar", &["-xzf", &format!("{}.tgz", AXE.replace('@', "-")), "package/axe.min.js"]);
        // Another test may do the same at this moment; whichever is last wins, and both are the same file.
        std::fs::rename(scratch.path().join("package/axe.min.js"), &kept).unwrap();
    }
    let script = std::fs::read_to_string(&kept).unwrap();
    let hash: String = Sha256::digest(&script).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hash, AXE_SHA256, "{} is not the file that was reviewed; remove it", kept.display());
    script
}

/// Every page, with something to see on it.
fn pages(office: &Office) -> Vec<String> {
    let letter = office.first_id("/api/v1/dlq");
    let group = office.first_id("/api/v1/groups");
    let mut wanted = json!({"act": {"act": "review"}, "filter": "queue:mail"});
    let preview = office.ask("POST", "/api/v1/operations/preview", &wanted);
    for part in ["token", "bound"] {
        wanted[part] = preview[part].clone();
    }
    let operation = text(&office.ask("POST", "/api/v1/operations", &wanted)["id"]);
    let with_ids = |(path, methods): (&str, &[&str])| {
        let path = match path {
            "/groups/{id}" => path.replace("{id}", &group),
            "/operations/{id}" => path.replace("{id}", &operation),
            "/act" => "/act?act=retry&filter=queue%3Apayments".into(),
            "/find" => format!("/find?id={letter}"),
            _ => path.replace("{id}", &letter).replace("{queue}", "payments"),
        };
        methods.contains(&"GET").then_some(path)
    };
    let more =
        ["/dlq?filter=statsu%3Apending", "/dlq?filter=queue%3Anobody", "/groups?by=queue", "/audit?verify=1"];
    let forms = ["tree", "raw", "hex"].map(|form| format!("/dlq/{letter}?payload={form}"));
    let listed = redrive_server::pages().into_iter().filter_map(with_ids);
    listed.chain(more.map(str::to_owned)).chain(forms).collect()
}

/// What axe-core calls serious or worse on the page that is open.
fn serious(browser: &Browser, axe: &str) -> Vec<String> {
    browser.run(axe);
    let found = browser.run_until_done(
        "const done = arguments[arguments.length - 1];
         axe.run(document, { resultTypes: ['violations'] }).then((all) => done(all.violations), (e) => done([String(e)]));",
    );
    let is_serious = |rule: &&Value| !matches!(rule["impact"].as_str(), Some("minor" | "moderate"));
    let rules = found.as_array().unwrap().iter().filter(is_serious);
    rules.map(|rule| format!("{}: {}", rule["help"], rule["nodes"][0]["html"])).collect()
}

#[test]
fn axe_finds_nothing_serious_on_any_page_light_or_dark() {
    let (office, browser, axe) = (Office::open(), Browser::start(), axe());
    office.let_in(&browser);
    office.ask("PATCH", "/api/v1/queues/bank", &json!({"breaker": {"key": "queue"}}));
    office.ask("POST", "/api/v1/breakers/bank/bank/open", &json!({"reason": "the bank is down"}));
    let pages = pages(&office);
    let mut complaints = Vec::new();
    for theme in ["Light", "Dark"] {
        browser.open(&office.page("/groups"));
        browser.press(theme);
        browser.shows("html", "Groups");
        for page in &pages {
            browser.open(&office.page(page));
            complaints
                .extend(serious(&browser, &axe).into_iter().map(|what| format!("{theme} {page}: {what}")));
        }
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
    let refused = |line: &String| line.contains("Content Security Policy") || line.contains("Uncaught");
    let reported: Vec<String> = browser.console().into_iter().filter(refused).collect();
    assert!(reported.is_empty(), "{reported:#?}");
}
