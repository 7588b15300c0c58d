//! The dashboard in a real browser: Chromium, driven through chromedriver by the WebDriver protocol, which is JSON over
//! HTTP. Nothing here waits for a time: every step waits until the page shows what it should.

mod access;
mod acts;
mod live;
mod office;

use crate::support::{PATIENCE, http};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// The key under which WebDriver names an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// What a fresh Chromium on a server needs to start and to stay quiet.
const FLAGS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1440,1000",
];

/// A browser with a profile of its own. It ends, with everything it has started, when it is dropped.
pub(crate) struct Browser {
    driver: Child,
    address: String,
    session: String,
    /// The process of Chromium.
    chromium: Option<Pid>,
    _home: tempfile::TempDir,
}

impl Browser {
    /// Starts Chromium.
    pub(crate) fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut driver = Command::new("chromedriver")
            .args(["--port=0", "--log-level=SEVERE"])
            .env("HOME", home.path())
            .env("TMPDIR", home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver starts; `scripts/setup` installs it");
        let mut said = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
        let port = said.find_map(|line| {
            let port = line.split_once("started successfully on port ")?.1;
            Some(port.trim_end_matches('.').to_owned())
        });
        // Whatever else it says must not fill the pipe.
        std::thread::spawn(move || said.for_each(drop));
        let mut browser = Self {
            driver,
            address: format!("127.0.0.1:{}", port.expect("chromedriver names its port")),
            session: String::new(),
            chromium: None,
            _home: home,
        };
        let profile = format!("--user-data-dir={}", browser._home.path().join("profile").display());
        let args: Vec<&str> = FLAGS.into_iter().chain([profile.as_str()]).collect();
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": args},
            "goog:loggingPrefs": {"browser": "ALL"},
            "timeouts": {"script": PATIENCE.as_millis(), "pageLoad": PATIENCE.as_millis()},
        }}});
        let started = browser.call("POST", "/session", &wanted).expect("Chromium starts");
        let id = started["capabilities"]["goog:processID"].as_i64();
        browser.chromium = id.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        browser.session = format!("/session/{}", started["sessionId"].as_str().unwrap());
        browser
    }

    /// Sends a command to the driver. An error is its name and what it says.
    fn call(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let reply = http(&self.address, method, path, &[], &body).map_err(|error| error.to_string())?;
        let mut value = reply.json();
        match reply.status {
            200 => Ok(value["value"].take()),
            _ => Err(format!("{}: {}", value["value"]["error"], value["value"]["message"])),
        }
    }

    fn post(&self, command: &str, body: &Value) -> Result<Value, String> {
        self.call("POST", &format!("{}/{command}", self.session), body)
    }

    fn get(&self, command: &str) -> Result<Value, String> {
        self.call("GET", &format!("{}/{command}", self.session), &Value::Null)
    }

    /// Opens an address.
    #[track_caller]
    pub(crate) fn open(&self, url: &str) {
        self.post("url", &json!({"url": url})).unwrap();
    }

    /// The path and query of the page.
    pub(crate) fn path(&self) -> String {
        let url = self.get("url").unwrap().as_str().unwrap().to_owned();
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        rest.find('/').map_or_else(String::new, |at| rest[at..].to_owned())
    }

    /// Repeats something until it succeeds: a page that is loading, or is being brought up to date, has its elements a
    /// moment later.
    #[track_caller]
    fn eventually<T>(&self, what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
        let began = Instant::now();
        loop {
            match attempt() {
                Ok(value) => return value,
                Err(error) if began.elapsed() > PATIENCE => {
                    let page = self.get("source").unwrap_or_default();
                    panic!("{what}: {error}\non {}\n{page}", self.path());
                }
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// The first element, by a CSS selector, or by an XPath if it begins with a slash.
    fn find(&self, selector: &str) -> Result<String, String> {
        let using = if selector.starts_with('/') { "xpath" } else { "css selector" };
        let found = self.post("element", &json!({"using": using, "value": selector}))?;
        found[ELEMENT].as_str().map(str::to_owned).ok_or_else(|| format!("no {selector}"))
    }

    /// Clicks an element as soon as it can be clicked.
    #[track_caller]
    pub(crate) fn click(&self, selector: &str) {
        self.eventually(&format!("click {selector}"), || {
            self.post(&format!("element/{}/click", self.find(selector)?), &json!({}))
        });
    }

    /// Clicks the link, button or menu with this text, as a person finds it.
    #[track_caller]
    pub(crate) fn press(&self, label: &str) {
        self.click(&labelled(label));
    }

    /// Types a text into a field, in place of what was there.
    #[track_caller]
    pub(crate) fn fill(&self, selector: &str, text: &str) {
        self.eventually(&format!("fill {selector}"), || {
            let field = self.find(selector)?;
            self.post(&format!("element/{field}/clear"), &json!({}))?;
            self.post(&format!("element/{field}/value"), &json!({"text": text}))
        });
    }

    /// Presses keys on the page, once its script listens to them.
    #[track_caller]
    pub(crate) fn keys(&self, text: &str) {
        self.eventually("the script of the page runs", || {
            let classes = self.run("return document.documentElement.className");
            let ready = classes.as_str().is_some_and(|classes| classes.contains("ready"));
            if ready { Ok(()) } else { Err(classes.to_string()) }
        });
        let keys = text.chars().flat_map(|key| {
            let key = key.to_string();
            [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})]
        });
        let keys = json!({"type": "key", "id": "keyboard", "actions": keys.collect::<Vec<_>>()});
        self.post("actions", &json!({"actions": [keys]})).unwrap();
    }

    /// Presses keys until they lead to a page: keys that belong together must not be pressed too slowly.
    #[track_caller]
    pub(crate) fn goes_by_keys(&self, text: &str, path: &str) {
        self.eventually(&format!("{text} leads to {path}"), || {
            self.keys(text);
            let now = self.path();
            if now.starts_with(path) { Ok(()) } else { Err(now) }
        });
    }

    /// Moves the pointer to the middle of an element.
    #[track_caller]
    pub(crate) fn point_at(&self, selector: &str) {
        self.eventually(&format!("point at {selector}"), || {
            let element = self.find(selector)?;
            let there =
                json!({"type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": {ELEMENT: element}});
            let pointer = json!({"type": "pointer", "id": "mouse", "actions": [there]});
            self.post("actions", &json!({"actions": [pointer]}))
        });
    }

    /// The text of an element, with single blanks.
    #[track_caller]
    pub(crate) fn text(&self, selector: &str) -> String {
        self.eventually(&format!("read {selector}"), || self.text_now(selector))
    }

    fn text_now(&self, selector: &str) -> Result<String, String> {
        let text = self.get(&format!("element/{}/text", self.find(selector)?))?;
        Ok(text.as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Waits until an element shows this text.
    #[track_caller]
    pub(crate) fn shows(&self, selector: &str, text: &str) {
        self.eventually(&format!("{selector} shows {text:?}"), || {
            let now = self.text_now(selector)?;
            if now.contains(text) { Ok(()) } else { Err(format!("it shows {now:?}")) }
        });
    }

    /// Waits until the page has this path.
    #[track_caller]
    pub(crate) fn arrives(&self, path: &str) {
        self.eventually(&format!("arrive at {path}"), || {
            let here = self.path();
            if here.starts_with(path) { Ok(()) } else { Err(format!("it is {here}")) }
        });
    }

    /// Runs a script in the page, which is not subject to the policy of the page, and returns its value.
    #[track_caller]
    pub(crate) fn run(&self, script: &str) -> Value {
        self.eventually(script, || self.post("execute/sync", &json!({"script": script, "args": []})))
    }

    /// Runs a script that calls its last argument when it is done.
    #[track_caller]
    fn run_until_done(&self, script: &str) -> Value {
        self.post("execute/async", &json!({"script": script, "args": []})).unwrap()
    }

    /// Sends a command of the DevTools protocol.
    #[track_caller]
    pub(crate) fn devtools(&self, command: &str, params: &Value) {
        self.post("goog/cdp/execute", &json!({"cmd": command, "params": params})).unwrap();
    }

    /// What the console has got since it was last asked: errors of scripts, refused requests, violations of the policy.
    #[track_caller]
    pub(crate) fn console(&self) -> Vec<String> {
        let entries = self.post("se/log", &json!({"type": "browser"})).unwrap();
        entries.as_array().unwrap().iter().map(|entry| entry["message"].to_string()).collect()
    }
}

/// An XPath of the link, button or menu with this text.
fn labelled(label: &str) -> String {
    format!("//*[self::a or self::button or self::summary][normalize-space()='{label}']")
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let _ = self.call("DELETE", &self.session, &Value::Null);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        // The driver has ended it, unless the driver was in trouble itself.
        if let Some(chromium) = self.chromium {
            let _ = kill_process(chromium, Signal::KILL);
        }
    }
}
