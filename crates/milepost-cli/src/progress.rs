//! What a person sees of work that takes longer than a second: on the error output, in a terminal only.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use milepost::Timestamp;
use milepost::model::Source;

use crate::out::clip;

/// Nothing is shown before so long.
const SHOW_AFTER_MS: i64 = 1000;
/// Between two changes of the line.
const EVERY_MS: i64 = 200;

/// What a terminal adds when somebody presses Ctrl-C.
const CTRL_C: usize = "^C".len();

/// Shows a line in the place of the last one. One that went over the end of the terminal's line could not be taken away.
fn show(line: &str) {
    let width = terminal_size::terminal_size_of(std::io::stderr()).map_or(80, |(width, _)| usize::from(width.0));
    let mut err = std::io::stderr().lock();
    // When the error output is gone there is nobody to tell.
    let _ = write!(err, "\r\x1b[K{}", clip(line, width.saturating_sub(CTRL_C + 1))).and_then(|()| err.flush());
}

/// Takes the line away.
pub fn clear() {
    if std::io::stderr().is_terminal() {
        show("");
    }
}

/// How far something is.
pub struct Progress {
    what: &'static str,
    total: u64,
    began: Timestamp,
    shown: Option<Timestamp>,
    source: Option<Source>,
}

impl Progress {
    pub fn new(what: &'static str, total: u64, source: Option<Source>) -> Self {
        let source = source.filter(|_| std::io::stderr().is_terminal());
        let began = source.as_ref().map_or(Timestamp(0), Source::now);
        Self { what, total, began, shown: None, source }
    }

    /// Something else is done now.
    pub fn now(&mut self, what: &'static str) {
        self.what = what;
    }

    /// So many are done.
    pub fn tell(&mut self, done: u64) {
        self.tell_with(done, String::new);
    }

    /// So many are done, and something else is to be said.
    pub fn tell_with(&mut self, done: u64, more: impl FnOnce() -> String) {
        let Some(source) = &self.source else { return };
        let now = source.now();
        let is_early = now.since_ms(self.began) < SHOW_AFTER_MS;
        if is_early || self.shown.is_some_and(|shown| now.since_ms(shown) < EVERY_MS) {
            return;
        }
        self.shown = Some(now);
        let of = if self.total > 0 { format!(" of {}", self.total) } else { String::new() };
        show(&format!("{} {done}{of}{}", self.what, more()));
    }

    /// Takes the line away.
    pub fn end(&mut self) {
        if self.shown.take().is_some() {
            clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

/// Something of which nobody knows how far it is, or that may take long at any place: the seconds are counted, and whatever
/// is told to be done.
pub struct Waiting(Option<(tokio::task::JoinHandle<()>, Arc<Seen>)>);

/// What is shown, and whether anything is.
#[derive(Default)]
struct Seen {
    is_shown: AtomicBool,
    done: AtomicU64,
    total: AtomicU64,
}

impl Waiting {
    pub fn new(what: &'static str, is_shown: bool) -> Self {
        if !is_shown || !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let shown = Arc::new(Seen::default());
        let seen = Arc::clone(&shown);
        let task = tokio::spawn(async move {
            for seconds in 1u64.. {
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                seen.is_shown.store(true, Ordering::Relaxed);
                let far = match (seen.done.load(Ordering::Relaxed), seen.total.load(Ordering::Relaxed)) {
                    (0, 0) => String::new(),
                    (done, 0) => format!(" {done}"),
                    (done, total) => format!(" {done} of {total}"),
                };
                show(&format!("{what}{far}, {seconds} s"));
            }
        });
        Self(Some((task, shown)))
    }

    /// So many are done, of so many where that is known.
    pub fn tell(&self, done: u64, total: u64) {
        if let Some((_, seen)) = &self.0 {
            seen.done.store(done, Ordering::Relaxed);
            seen.total.store(total, Ordering::Relaxed);
        }
    }

    /// Takes the line away.
    pub fn end(self) {
        drop(self);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((task, shown)) = self.0.take() {
            task.abort();
            if shown.is_shown.load(Ordering::Relaxed) {
                clear();
            }
        }
    }
}
