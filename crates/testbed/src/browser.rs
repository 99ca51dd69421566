//! A headless Chromium, driven through the pipe of its remote debugging: opens pages, looks at them, takes
//! pictures.
//!
//! Only what the tests of the pages need; messages are JSON, each ended by a zero byte.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use longhaul_api::routes;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http::Api;
use crate::{TICK, needs};

/// A browser that does not answer by then hangs. Its first start on a cold disk takes seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// What a page says once it is there.
const SHOWN: &str = "document.readyState == 'complete' ? document.body.innerText : ''";

/// Everything off that speaks to anyone but the page.
const ARGUMENTS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
];

/// Where pictures of pages go: `target/screenshots`, whatever `target` is called.
pub fn screenshots() -> PathBuf {
    let test = std::env::current_exe().expect("a test is a file");
    // target/release/deps/pages-0123
    test.ancestors().nth(3).expect("it lies in the target folder").join("screenshots")
}

/// A running browser with a fresh profile.
pub struct Browser {
    child: Child,
    requests: File,
    messages: mpsc::Receiver<Value>,
    /// Messages that came while another one was awaited.
    events: Vec<Value>,
    next_id: u64,
    _profile: TempDir,
}

/// One page (tab) and what it complained about.
pub struct Page<'a> {
    browser: &'a mut Browser,
    session: String,
    target: String,
}

/// The browser that the tests use: `LONGHAUL_CHROMIUM`, else one on the path.
pub fn find() -> Option<PathBuf> {
    let named = std::env::var_os("LONGHAUL_CHROMIUM").map(PathBuf::from);
    let usual = ["chromium", "chromium-browser", "google-chrome"].map(PathBuf::from);
    named.into_iter().chain(usual).find(|path| needs::program(&path.to_string_lossy(), &["--version"]))
}

impl Browser {
    pub fn start(program: &Path) -> Browser {
        Browser::start_with(program, &[])
    }

    /// One that believes the servers with this key, and no other that it does not know. `spki_sha256` is the
    /// SHA-256 of the key's SubjectPublicKeyInfo in base64.
    pub fn start_knowing(program: &Path, spki_sha256: &str) -> Browser {
        Browser::start_with(program, &[format!("--ignore-certificate-errors-spki-list={spki_sha256}")])
    }

    fn start_with(program: &Path, further: &[String]) -> Browser {
        let profile =
            tempfile::Builder::new().prefix("longhaul-browser-").tempdir().expect("a temporary directory");
        let (requests, replies) = (profile.path().join("requests"), profile.path().join("replies"));
        for pipe in [&requests, &replies] {
            mknodat(CWD, pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a named pipe");
        }
        let log = File::create(profile.path().join("log")).expect("a log");
        let child = Command::new("sh")
            // The browser reads requests from descriptor 3 and answers on 4.
            .args(["-c", r#"exec "$0" "$@" 3<"$REQUESTS" 4>"$REPLIES""#])
            .arg(program)
            .args(ARGUMENTS)
            .args(further)
            .arg(format!("--user-data-dir={}", profile.path().join("profile").display()))
            .env("REQUESTS", &requests)
            .env("REPLIES", &replies)
            .env("HOME", profile.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("a shell");
        let requests = File::options().write(true).open(requests).expect("the pipe opens");
        let replies = BufReader::new(File::open(replies).expect("the pipe opens"));
        let (sender, messages) = mpsc::channel();
        std::thread::spawn(move || read_messages(replies, &sender));
        Browser { child, requests, messages, events: Vec::new(), next_id: 1, _profile: profile }
    }

    /// A page as wide as a screen of that many pixels.
    pub fn page(&mut self, width: u32, height: u32) -> Page<'_> {
        let target =
            text(&self.call(None, "Target.createTarget", json!({ "url": "about:blank" })), "targetId");
        let attach = json!({ "targetId": target, "flatten": true });
        let session = text(&self.call(None, "Target.attachToTarget", attach), "sessionId");
        self.events.clear();
        let mut page = Page { browser: self, session, target };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.call(&format!("{domain}.enable"), json!({}));
        }
        page.call("Page.setLifecycleEventsEnabled", json!({ "enabled": true }));
        let screen =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        page.call("Emulation.setDeviceMetricsOverride", screen);
        page
    }

    fn call(&mut self, session: Option<&str>, method: &str, parameters: Value) -> Value {
        self.try_call(session, method, parameters).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// The same where an error is an answer.
    fn try_call(&mut self, session: Option<&str>, method: &str, parameters: Value) -> Result<Value, String> {
        let id = self.next_id;
        self.next_id += 1;
        let mut request = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = session {
            request["sessionId"] = json!(session);
        }
        let sent = self.requests.write_all(format!("{request}\0").as_bytes());
        sent.unwrap_or_else(|error| panic!("{method}: {error}; the browser's log:\n{}", self.log()));
        let reply = self.message(|message| message["id"] == json!(id), method);
        match &reply["error"] {
            Value::Null => Ok(reply["result"].clone()),
            error => Err(error.to_string()),
        }
    }

    /// Takes in what comes within a time.
    fn listen(&mut self, time: Duration) {
        self.events.extend(self.messages.recv_timeout(time));
    }

    /// The next message that fits; the others are kept as events.
    fn message(&mut self, fits: impl Fn(&Value) -> bool, what: &str) -> Value {
        let until = Instant::now() + ANSWER_WITHIN;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.messages.recv_timeout(left) {
                Ok(message) if fits(&message) => return message,
                Ok(message) => self.events.push(message),
                Err(error) => panic!("{what}: {error}; the browser's log:\n{}", self.log()),
            }
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self._profile.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its other processes end with the pipe to this one.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Page<'_> {
    fn call(&mut self, method: &str, parameters: Value) -> Value {
        let session = self.session.clone();
        self.browser.call(Some(&session), method, parameters)
    }

    /// Goes there and waits until the page has loaded.
    pub fn open(&mut self, url: &str) {
        self.forget_loads();
        let begun = self.call("Page.navigate", json!({ "url": url }));
        assert!(begun["errorText"].is_null(), "{url}: {}", begun["errorText"]);
        let loader = text(&begun, "loaderId");
        self.until_loaded(|loaded| loaded == loader, url);
    }

    /// Logs in by a link for one log-in, as the demo prints it, in the name of that caller of the API.
    pub fn log_in(&mut self, api: &Api, base: &str) {
        let login = api.call(&routes::LOGIN_TOKEN_CREATE, &[], &[], &Value::Null);
        let login = login.expect("the service answers").expect(201).json();
        self.open(&format!("{base}/ui/?token={}", text(&login, "token")));
        self.follow("document.querySelector('form[action=\"/ui/login\"] button').click()");
        let address = self.value("location.href").to_string();
        assert!(!address.contains("token="), "the token does not stay in the address: {address}");
    }

    /// Does what loads another page, such as pressing a button of a form, and waits until it has.
    pub fn follow(&mut self, expression: &str) {
        // The load of the page before may be told late.
        let before = text(&self.call("Page.getFrameTree", json!({}))["frameTree"]["frame"], "loaderId");
        self.forget_loads();
        self.value(expression);
        self.until_loaded(|loaded| loaded != before, expression);
    }

    /// What comes from now on is of another page.
    fn forget_loads(&mut self) {
        self.browser.events.retain(|event| !is_load(event));
    }

    /// Waits until a page has loaded; whether it is the one is seen by its loader.
    fn until_loaded(&mut self, is_it: impl Fn(&str) -> bool, what: &str) {
        let fits =
            |message: &Value| is_load(message) && message["params"]["loaderId"].as_str().is_some_and(&is_it);
        match self.browser.events.iter().position(fits) {
            Some(place) => drop(self.browser.events.remove(place)),
            None => drop(self.browser.message(fits, what)),
        }
    }

    /// Presses what an expression finds, as a hand would.
    pub fn press(&mut self, find: &str) {
        let middle = format!(
            "(e => {{ e.scrollIntoView({{ block: 'center' }}); const box = e.getBoundingClientRect(); \
             return [box.x + box.width / 2, box.y + box.height / 2]; }})({find})"
        );
        let middle = self.value(&middle);
        for kind in ["mousePressed", "mouseReleased"] {
            let (x, y) = (&middle[0], &middle[1]);
            let event = json!({ "type": kind, "x": x, "y": y, "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Waits for a page with these words, however many come before it, and returns all of its words.
    pub fn until_shows(&mut self, words: &str) -> String {
        let begun = Instant::now();
        loop {
            // Between two pages there is none that could answer.
            let asked = json!({ "expression": SHOWN, "returnByValue": true });
            let shown = self.browser.try_call(Some(&self.session), "Runtime.evaluate", asked);
            let shown = shown.ok().and_then(|reply| Some(reply["result"]["value"].as_str()?.to_owned()));
            match shown {
                Some(shown) if shown.contains(words) => return shown,
                shown => assert!(begun.elapsed() < ANSWER_WITHIN, "never {words:?}: {shown:?}"),
            }
            self.browser.listen(TICK);
        }
    }

    /// From now on this page takes any certificate of a server: browsers do not know the authorities of
    /// tests.
    pub fn trusting(&mut self) {
        self.call("Security.setIgnoreCertificateErrors", json!({ "ignore": true }));
    }

    /// From now on this page runs no scripts (but ours).
    pub fn without_scripts(&mut self) {
        self.call("Emulation.setScriptExecutionDisabled", json!({ "value": true }));
    }

    /// Whoever was logged in is so no more.
    pub fn clear_cookies(&mut self) {
        self.call("Network.clearBrowserCookies", json!({}));
    }

    pub fn dark(&mut self, dark: bool) {
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", media);
    }

    /// The value of an expression in the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let reply = self.call("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true }));
        assert!(reply["exceptionDetails"].is_null(), "{expression}: {}", reply["exceptionDetails"]);
        reply["result"]["value"].clone()
    }

    /// Waits for a promise of the page.
    pub fn promised(&mut self, expression: &str) -> Value {
        let ask = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let reply = self.call("Runtime.evaluate", ask);
        assert!(reply["exceptionDetails"].is_null(), "{expression}: {}", reply["exceptionDetails"]);
        reply["result"]["value"].clone()
    }

    /// The whole page as a picture.
    pub fn screenshot(&mut self, file: &Path) {
        let reply =
            self.call("Page.captureScreenshot", json!({ "format": "png", "captureBeyondViewport": true }));
        let bytes = from_base64(reply["data"].as_str().expect("a picture"));
        fs::create_dir_all(file.parent().expect("it lies in a directory"))
            .expect("the directory of pictures");
        fs::write(file, bytes).expect("the picture is written");
    }

    /// What the page complained about since the last time: errors on the console, exceptions, refused loads.
    pub fn complaints(&mut self) -> Vec<String> {
        let complaint = |event: &Value| {
            let parameters = &event["params"];
            match event["method"].as_str()? {
                "Runtime.exceptionThrown" => Some(parameters["exceptionDetails"].to_string()),
                "Runtime.consoleAPICalled" if parameters["type"] == json!("error") => {
                    Some(parameters["args"].to_string())
                }
                "Log.entryAdded" if parameters["entry"]["level"] == json!("error") => {
                    Some(parameters["entry"].to_string())
                }
                _ => None,
            }
        };
        let complaints = self.browser.events.iter().filter_map(complaint).collect();
        self.browser.events.clear();
        complaints
    }
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let target = self.target.clone();
            self.browser.call(None, "Target.closeTarget", json!({ "targetId": target }));
        }
    }
}

fn is_load(message: &Value) -> bool {
    message["method"] == json!("Page.lifecycleEvent") && message["params"]["name"] == json!("load")
}

fn read_messages(mut replies: impl BufRead, sender: &mpsc::Sender<Value>) {
    let mut bytes = Vec::new();
    while replies.read_until(0, &mut bytes).is_ok_and(|read| read > 0) {
        bytes.pop();
        if let Ok(message) = serde_json::from_slice(&bytes)
            && sender.send(message).is_err()
        {
            return;
        }
        bytes.clear();
    }
}

fn text(reply: &Value, name: &str) -> String {
    reply[name].as_str().unwrap_or_else(|| panic!("no {name} in {reply}")).to_owned()
}

/// Standard alphabet, with padding.
fn from_base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u8> = text.bytes().filter_map(digit).collect();
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let bits = group
            .iter()
            .enumerate()
            .fold(0u32, |bits, (place, &digit)| bits | u32::from(digit) << (18 - 6 * place));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_decoded() {
        assert_eq!(from_base64("TG9uZ2hhdWw="), b"Longhaul");
        assert_eq!(from_base64("bG9uZw=="), b"long");
        assert_eq!(from_base64("YWJj"), b"abc");
    }
}
