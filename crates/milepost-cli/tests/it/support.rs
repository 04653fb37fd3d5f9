//! What many tests need: the real binary in a scratch place, with nothing of the machine's own environment.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use milepost::{EngineOptions, Milepost};
use serde_json::Value;

/// A scratch place with a home, a store of its own and nothing else.
pub struct Place {
    dir: tempfile::TempDir,
}

/// What a run came to.
#[derive(Debug, Clone)]
pub struct Ran {
    pub out: String,
    pub err: String,
    pub code: i32,
}

impl Ran {
    pub fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("what is written is UTF-8");
        Self { out: text(output.stdout), err: text(output.stderr), code: output.status.code().unwrap_or(-1) }
    }
}

impl Place {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.file(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// The file of the store that is used when nothing is said.
    pub fn store(&self) -> PathBuf {
        self.file("data/milepost/milepost.db")
    }

    pub fn url(&self) -> String {
        format!("sqlite:{}", self.store().display())
    }

    /// The same, with its directory there already.
    pub fn url_made(&self) -> String {
        std::fs::create_dir_all(self.store().parent().unwrap()).unwrap();
        self.url()
    }

    /// The command, with this place as its world.
    pub fn command(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_milepost"));
        command.args(args).current_dir(self.path()).env_clear().env("HOME", self.path()).env("COLUMNS", "100");
        for (name, place) in [
            ("XDG_DATA_HOME", "data"),
            ("XDG_CONFIG_HOME", "config"),
            ("XDG_STATE_HOME", "state"),
            ("XDG_CACHE_HOME", "cache"),
            ("TMPDIR", "."),
        ] {
            command.env(name, self.file(place));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        Ran::of(self.command(args).output().unwrap())
    }

    /// Runs it with something on its input.
    pub fn run_with(&self, args: &[&str], input: &[u8]) -> Ran {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        // It may have seen enough before the end.
        let _ = child.stdin.take().unwrap().write_all(input);
        Ran::of(child.wait_with_output().unwrap())
    }

    /// What a run that must succeed wrote, without the last line's end.
    pub fn ok(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
        ran.out.trim_end().to_owned()
    }

    /// What a run that must succeed wrote as JSON.
    pub fn json(&self, args: &[&str]) -> Value {
        let text = self.ok(&[&["--json"], args].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error}\n{text}"))
    }

    /// A session with this title and these messages; its id.
    pub fn session(&self, title: &str, messages: &[&str]) -> String {
        let id = self.ok(&["sessions", "new", "--title", title]);
        for message in messages {
            self.ok(&["messages", "add", &id, message]);
        }
        id
    }

    /// An engine beside the command line, which holds the sessions that it is given for as long as a test takes: while the
    /// command runs, nobody here would renew them.
    pub async fn another(&self, holder: &str) -> Milepost {
        let mut options = EngineOptions::default();
        options.holder = holder.into();
        options.store.lease_ttl_ms = 3_600_000;
        Milepost::open_with(&self.url(), options).await.unwrap()
    }

    /// The texts of a session's messages.
    pub fn texts(&self, session: &str) -> Vec<String> {
        let list = self.json(&["messages", "list", session, "--all"]);
        let text = |message: &Value| message["content"].as_str().unwrap_or_default().to_owned();
        list["messages"].as_array().unwrap().iter().map(text).collect()
    }
}

/// The value at a JSON pointer, as a text.
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let found = value.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {value:#}"));
    found.as_str().unwrap_or_else(|| panic!("{pointer} is no text in {value:#}"))
}

/// The value at a JSON pointer, as a number.
pub fn number(value: &Value, pointer: &str) -> u64 {
    let found = value.pointer(pointer).unwrap_or_else(|| panic!("no {pointer} in {value:#}"));
    found.as_u64().unwrap_or_else(|| panic!("{pointer} is no number in {value:#}"))
}
