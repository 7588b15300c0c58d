//! What somebody does who is woken at night, by mouse and keyboard, with the script of the dashboard and without it.

use super::office::Office;
use super::{Browser, labelled};
use serde_json::json;

#[test]
fn everything_is_done_with_the_script() {
    let (office, browser) = (Office::open(), Browser::start());
    walk(&office, &browser);
    assert_eq!(browser.run("return document.documentElement.classList.contains('js')"), true);
    // The browser reports the pages whose status says what was wrong: the token, and the filter. And nothing else.
    let meant = |line: &String| line.contains("/login - Failed to load") || line.contains("filter=statsu");
    let reported: Vec<String> = browser.console().into_iter().filter(|line| !meant(line)).collect();
    assert!(reported.is_empty(), "{reported:#?}");
}

#[test]
fn everything_is_done_without_any_script() {
    let (office, browser) = (Office::open(), Browser::start());
    browser.devtools("Emulation.setScriptExecutionDisabled", &json!({"value": true}));
    walk(&office, &browser);
    assert_eq!(browser.run("return document.documentElement.className"), "", "the page ran no script");
}

/// Logs in, finds what is wrong, mends one letter, heals the group by a canary, closes others, takes that back, and
/// proves it all by the audit trail.
fn walk(office: &Office, browser: &Browser) {
    log_in(office, browser);
    find_the_cause(browser);
    mend_a_filter(office, browser);
    edit_a_letter(browser);
    close_two_letters(office, browser);
    heal_by_a_canary(office, browser);
    resolve_many_and_take_it_back(office, browser);
    prove_it(office, browser);
}

fn log_in(office: &Office, browser: &Browser) {
    browser.open(&office.page("/groups"));
    browser.arrives("/login");
    browser.fill("input[name=token]", "rdt_wrong");
    browser.press("Log in");
    browser.shows("[role=alert]", "did not work");
    office.let_in(browser);
}

fn find_the_cause(browser: &Browser) {
    browser.shows("#diagnosis", "GatewayTimeout");
    browser.shows("#groups tbody tr:first-child", "14");
    browser.click("#groups tbody tr:first-child a.open");
    browser.arrives("/groups/");
    browser.shows("h1", "GatewayTimeout");
    browser.shows("main", "14 letters wait for a decision");
    browser.shows("main", "14 letters would go back");
}

fn mend_a_filter(office: &Office, browser: &Browser) {
    browser.open(&office.page("/dlq"));
    browser.fill("input[data-filter]", "statsu:pending queue:payments");
    browser.press("Filter");
    browser.shows("#mistake .caret", "statsu");
    browser.shows("#mistake", "Did you mean status?");
    browser.press("Search status:pending queue:payments");
    browser.shows("#letters footer", "14 letters on this page");
}

/// Opens the first letter and changes its payload after looking at the differences.
fn edit_a_letter(browser: &Browser) {
    browser.click("#letters tbody tr:first-child a.open");
    browser.shows("#story", "It died because its only attempt failed.");
    browser.press("Edit");
    browser.fill("textarea[name=payload]", r#"{"order": 99, "note": "by hand"}"#);
    browser.fill("input[name=reason]", "the order was entered twice");
    browser.press("Show the differences");
    browser.shows("table.diff .ins", "\"order\": 99");
    browser.shows("table.diff .del", "8113");
    browser.press("Save as a new version");
    browser.shows("main", "Revision 1");
    browser.shows("main", "the order was entered twice");
}

/// Resolves the letter that is open, goes on to the next one, and abandons that.
fn close_two_letters(office: &Office, browser: &Browser) {
    browser.open(&office.page("/dlq?filter=queue%3Amail%20status%3Apending"));
    browser.click("#letters tbody tr:first-child a.open");
    browser.press("next →");
    browser.click("//summary[normalize-space()='Resolve']");
    browser.fill("details[open] textarea[name=reason]", "sent by hand, see note 7");
    browser.click("details[open] button[value=resolve]");
    browser.shows("#story .pill", "Resolved");
    browser.shows("#timeline", "sent by hand, see note 7");
    browser.open(&office.page("/dlq?filter=queue%3Amail%20status%3Apending"));
    browser.shows("#letters footer", "4 letters on this page");
    browser.click("#letters tbody tr:first-child a.open");
    browser.click("//summary[normalize-space()='Abandon']");
    browser.fill("details[open] textarea[name=reason]", "the customer is gone");
    browser.click("details[open] button[value=abandon]");
    browser.shows("#story .pill", "Abandoned");
}

/// Sends ten letters of the largest group as a canary, and the others after they have succeeded.
fn heal_by_a_canary(office: &Office, browser: &Browser) {
    browser.open(&office.page("/groups"));
    browser.click("#groups tbody tr:first-child a.open");
    browser.press("Send 10 as a canary");
    browser.arrives("/act");
    browser.shows("h1", "Send back 14 letters");
    browser.fill("input[name=observe]", "0s");
    browser.fill("textarea[name=reason]", "the gateway is back");
    browser.press("Send back 14 letters");
    browser.arrives("/operations/");
    browser.shows("#progress", "Canary of 10");
    office.work("payments", 10);
    office.work("payments", 4);
    // The page follows by itself: by events with the script, by reloading without it.
    browser.shows("#progress", "14 succeeded");
    browser.shows("#members header", "Done");
    browser.open(&office.page("/groups?state=all"));
    browser.shows("main", "Resolved");
}

/// Selects two letters, resolves them after a preview, and takes that back.
fn resolve_many_and_take_it_back(office: &Office, browser: &Browser) {
    browser.open(&office.page("/dlq?filter=queue%3Amail%20status%3Apending"));
    browser.shows("#letters footer", "3 letters on this page");
    browser.click("#letters tbody tr:nth-child(1) input[name=id]");
    browser.click("#letters tbody tr:nth-child(3) input[name=id]");
    browser.click(".selection button[value=resolve]");
    browser.shows("h1", "Resolve 2 letters");
    browser.shows("main", "2 that you selected");
    browser.fill("textarea[name=reason]", "they were sent by hand");
    browser.press("Resolve 2 letters");
    browser.shows("#progress", "2 done");
    browser.shows("#members header", "Done");
    browser.press("Take back what has not begun");
    browser.shows("#members header", "Undone");
    browser.open(&office.page("/dlq?filter=queue%3Amail%20status%3Apending"));
    browser.shows("#letters footer", "3 letters on this page");
}

fn prove_it(office: &Office, browser: &Browser) {
    browser.open(&office.page("/audit"));
    for (act, why) in [
        ("undo", ""),
        ("start", "they were sent by hand"),
        ("start", "the gateway is back"),
        ("abandon", "the customer is gone"),
        ("resolve", "sent by hand, see note 7"),
        ("edit", "the order was entered twice"),
    ] {
        browser.shows(&format!("//tr[contains(., '{act}') and contains(., '{why}')]"), act);
    }
    browser.click(&labelled("Verify the chain"));
    browser.shows("[role=status]", "Whole.");
}
