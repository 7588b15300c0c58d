//! Live pages: what changes in the store appears by itself, and nothing moves that somebody points at or has selected.

use super::Browser;
use super::office::Office;
use serde_json::Value;

/// The places of everything that must not move, and what is selected.
const PLACES: &str = "
    const rows = Array.from(document.querySelectorAll('[data-row]'));
    const place = (row) => { const box = row.getBoundingClientRect(); return [row.id, box.top, box.height]; };
    const selected = Array.from(document.querySelectorAll('input[name=id]:checked')).map((box) => box.value);
    return [rows.map(place), selected, window.scrollY];";

/// Lets messages of these new causes die, one after the other, and returns the places after each has appeared on the page.
fn watch(office: &Office, browser: &Browser, causes: std::ops::Range<u8>) -> Vec<Value> {
    let letters = "#nav a[href='/dlq'] .n";
    let before: usize = browser.text(letters).parse().unwrap();
    let update = |(n, letter): (usize, u8)| {
        let cause = format!("Cause{}", char::from(letter));
        office.fail("payments", "charge", 1, &cause, "the card was refused");
        browser.shows(letters, &(before + n + 1).to_string());
        browser.run(PLACES)
    };
    causes.enumerate().map(update).collect()
}

#[test]
fn nothing_moves_over_twenty_updates() {
    let (office, browser) = (Office::open(), Browser::start());
    office.let_in(&browser);
    browser.open(&office.page("/dlq"));
    browser.click("#letters tbody tr:nth-child(2) input[name=id]");
    browser.point_at("#letters tbody tr:nth-child(4) .template");
    let before = browser.run(PLACES);
    assert_eq!(before[1].as_array().unwrap().len(), 1, "one is selected");
    for (n, after) in watch(&office, &browser, b'A'..b'K').into_iter().enumerate() {
        assert_eq!(after, before, "update {n} of the letters");
    }
    browser.shows("#stale", "There is news");

    browser.open(&office.page("/groups"));
    browser.point_at("#groups tbody tr:nth-child(2) .template");
    let before = browser.run(PLACES);
    for (n, after) in watch(&office, &browser, b'K'..b'U').into_iter().enumerate() {
        assert_eq!(after, before, "update {n} of the groups");
    }
    // Somebody who asks for the news gets it, and whoever points at nothing gets it without asking.
    browser.press("There is news. Show it");
    browser.point_at("#diagnosis");
    browser.shows("#groups footer", "22 groups");
    office.fail("mail", "receipt", 1, "Late", "it came too late");
    browser.shows("#groups footer", "23 groups");
    let reported = browser.console();
    assert!(reported.is_empty(), "{reported:#?}");
}

#[test]
fn the_keyboard_is_enough() {
    let (office, browser) = (Office::open(), Browser::start());
    office.let_in(&browser);
    browser.keys("?");
    browser.shows("#keys", "Next and previous row");
    browser.click("#keys button");
    browser.goes_by_keys("gd", "/dlq");
    browser.shows("#letters footer", "19 letters");
    browser.keys("jjx");
    browser.shows(".selection", "1 selected");
    browser.keys("x");
    browser.keys("/");
    assert_eq!(browser.run("return document.activeElement.name"), "filter");
    browser.fill("input[data-filter]", "que");
    assert_eq!(browser.run("return document.querySelector('datalist option').value"), "queue:");
    browser.fill("input[data-filter]", "queue:mail\u{e007}");
    browser.shows("#letters footer", "5 letters");
    browser.keys("j\u{e007}");
    browser.shows("#story", "It died");
    let first = browser.path();
    browser.keys("n");
    browser.shows("nav.crumbs", "previous");
    assert_ne!(browser.path(), first);
}
