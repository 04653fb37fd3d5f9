//! The conversation itself: what is said, what is commanded, what is heard.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use milepost_models::{Cancel, Piece};
use milepost_run::chat::{Chat, Left, Said};
use serde_json::json;

use super::lines::{Heard, Lines};
use super::{Fresh, Place};
use crate::app::{App, Interrupts, Stop};
use crate::commands::cost::UNCHECKED;
use crate::commands::end::PAUSED;
use crate::commands::tell::line;
use crate::errors::{INTERRUPTED, Usage as Wrong};
use crate::out::{count, plain, safe, short};

const HELP: &str = "/undo          take your last message back, with its answer
/retry         ask again for an answer to your last message
/branch TITLE  go on in a new session; this one stays as it is
/history N     show the last N messages (10)
/save LABEL    take a checkpoint
/compact       let a summary stand for older messages; every message stays
/cost          what was spent since you came
/session       which session this is
/quit          leave; so does Ctrl-D. `milepost chat --session ID` goes on
A line that ends with \\ goes on in the next one. // begins a message with /.";

/// The exit code when the model is at a limit.
const LIMITED: u8 = 11;

/// Whether it goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    Leave,
}

pub struct Talk<'a> {
    pub app: &'a mut App,
    pub chat: Option<Chat>,
    pub fresh: Fresh,
    pub signals: Interrupts,
    pub lines: Lines,
    pub place: Place,
    pub code: u8,
}

/// Shows where something is to be typed.
pub fn prompt(app: &App, text: &str) -> Result<()> {
    app.out.bytes(app.out.styles.bold(text).as_bytes())
}

/// The next line. However long somebody thinks, the session stays theirs.
async fn next_line(lines: &mut Lines, chat: Option<&Chat>) -> Heard {
    let Some(chat) = chat else { return lines.next().await };
    let every = Duration::from_millis(chat.session().renew_every_ms());
    loop {
        tokio::select! {
            heard = lines.next() => return heard,
            () = tokio::time::sleep(every) => chat.stay().await,
        }
    }
}

impl Talk<'_> {
    pub async fn go(mut self, greets: Option<Left>) -> Result<ExitCode> {
        if let (Some(left), Some(chat)) = (&greets, &self.chat) {
            let cancel = Cancel::new();
            let said =
                heard_by(self.app, self.place, &mut self.signals, &cancel, |hear| chat.greet(left, &cancel, hear));
            let said = said.await?;
            self.tell(&said);
        } else if self.place == Place::Terminal {
            self.app.out.note(self.app.styles().dim("/help lists what can be said; /quit or Ctrl-D leaves"));
        }
        let talked = self.talk().await;
        // Whatever became of it: the session is left in order, if the store lets it.
        let left = match self.chat.take() {
            Some(chat) => {
                let id = chat.session().id();
                let left = chat.leave().await;
                if self.place == Place::Terminal && left.is_ok() {
                    self.app.out.note(format!("left; `milepost chat --session {}` goes on", short(id)));
                }
                left
            }
            None => Ok(()),
        };
        talked?;
        left?;
        Ok(ExitCode::from(self.code))
    }

    async fn talk(&mut self) -> Result<()> {
        while let Some(said) = self.listen().await? {
            let next = match said.strip_prefix('/') {
                Some(rest) if self.place == Place::Terminal && !rest.starts_with('/') => self.command(rest).await?,
                Some(rest) if self.place == Place::Terminal => self.say(rest).await?,
                _ => self.say(&said).await?,
            };
            if next == Next::Leave {
                break;
            }
        }
        Ok(())
    }

    /// The next thing that is said; none at the end.
    async fn listen(&mut self) -> Result<Option<String>> {
        let mut said = String::new();
        let mut was_interrupted = false;
        loop {
            if self.place == Place::Terminal {
                prompt(self.app, if said.is_empty() { "> " } else { "… " })?;
            }
            let heard = tokio::select! {
                heard = next_line(&mut self.lines, self.chat.as_ref()) => heard,
                stop = self.signals.next() => {
                    if stop == Stop::Terminate || self.place == Place::Pipe || was_interrupted {
                        self.code = if self.place == Place::Pipe { INTERRUPTED } else { self.code };
                        return Ok(None);
                    }
                    (was_interrupted, said) = (true, String::new());
                    self.app.out.line("")?;
                    self.app.out.note("Ctrl-C again, or /quit, leaves");
                    continue;
                }
            };
            match heard {
                Heard::End => {
                    if self.place == Place::Terminal {
                        self.app.out.line("")?;
                    }
                    return Ok(Some(said).filter(|said| !said.trim().is_empty()));
                }
                Heard::Wrong(why) => match self.place {
                    Place::Terminal => self.app.out.note(format!("{} {why}", self.app.styles().error("error:"))),
                    Place::Pipe => return Err(Wrong(why).into()),
                },
                Heard::Line(text) => {
                    if let Some(begin) = text.strip_suffix('\\').filter(|_| self.place == Place::Terminal) {
                        said.push_str(begin);
                        said.push('\n');
                        continue;
                    }
                    said.push_str(&text);
                    if !said.trim().is_empty() {
                        return Ok(Some(said));
                    }
                    said.clear();
                }
            }
        }
    }

    async fn say(&mut self, text: &str) -> Result<Next> {
        let chat = match self.chat.take() {
            Some(chat) => chat,
            None => self.fresh.begin(text).await?,
        };
        let chat = &*self.chat.insert(chat);
        let cancel = Cancel::new();
        let said = heard_by(self.app, self.place, &mut self.signals, &cancel, |hear| chat.say(text, &cancel, hear));
        let said = said.await?;
        Ok(self.tell(&said))
    }

    /// Says how an answer ended. On a pipe, one that did not come ends the conversation.
    fn tell(&mut self, said: &Said) -> Next {
        let styles = self.app.styles();
        let (answer, why) = match said {
            Said::Whole(answer) => (Some(answer), None),
            Said::Cut { answer, why } => (Some(answer), Some(format!("{why}; what had arrived is kept"))),
            Said::Limited(limited) => {
                self.code = LIMITED;
                let why = format!(
                    "the model is at a limit until {}: {}; `milepost work` asks it again then",
                    limited.until,
                    plain(&limited.why)
                );
                (limited.partial.as_deref(), Some(why))
            }
            Said::Failed(why) => (None, Some(why.to_string())),
            Said::OverBudget(why) => {
                self.code = PAUSED;
                let id = self.chat.as_ref().map(|chat| short(chat.session().id())).unwrap_or_default();
                (None, Some(format!("{why}: milepost chat --session {id} --budget-tokens NUMBER")))
            }
        };
        if self.app.out.json {
            let id = self.chat.as_ref().map(|chat| chat.session().id());
            let usage = answer.map(
                |answer| json!({ "inputTokens": answer.usage.sent(), "outputTokens": answer.usage.output_tokens }),
            );
            line(&json!({
                "event": "answer", "sessionId": id, "text": answer.map(|answer| answer.message.text()),
                "isWhole": matches!(said, Said::Whole(_)), "why": why, "usage": usage,
                "costUsd": answer.and_then(|answer| answer.cost.as_ref()).map(|cost| cost.usd),
            }));
        } else if let Some(why) = &why {
            self.app.out.note(format!("{} {}", styles.warn("stopped:"), plain(why)));
        }
        match (self.place, why) {
            (Place::Terminal, _) => {
                self.code = 0;
                Next::GoOn
            }
            (Place::Pipe, None) => Next::GoOn,
            (Place::Pipe, Some(_)) => {
                let is_cancelled = matches!(
                    said,
                    Said::Cut { why: milepost_models::Error::Cancelled { .. }, .. }
                        | Said::Failed(milepost_models::Error::Cancelled { .. })
                );
                self.code = match (is_cancelled, self.code) {
                    (true, _) => INTERRUPTED,
                    (false, 0) => 1,
                    (false, code) => code,
                };
                Next::Leave
            }
        }
    }

    async fn command(&mut self, given: &str) -> Result<Next> {
        let (word, rest) = given.split_once(char::is_whitespace).unwrap_or((given, ""));
        let rest = rest.trim();
        match (word, &self.chat) {
            ("quit" | "exit" | "q", _) => return Ok(Next::Leave),
            ("help" | "h" | "?", _) => self.app.out.line(HELP)?,
            ("cost", _) => {
                let spent = self.chat.as_ref().map(Chat::spent).unwrap_or_default();
                let (sent, received) = (count(spent.input_tokens, "token"), count(spent.output_tokens, "token"));
                self.app.out.line(format!("{sent} sent, {received} received, ${:.4}", spent.cost_usd))?;
                if spent.unchecked > 0 {
                    self.app.out.note(UNCHECKED);
                }
            }
            ("undo" | "retry" | "branch" | "history" | "save" | "compact" | "session", None) => {
                self.app.out.line("nothing was said yet")?;
            }
            ("undo", Some(chat)) => match chat.undo().await? {
                Some(undone) => {
                    let (messages, said) = (count(undone.messages, "message"), plain(&undone.said));
                    self.app.out.line(format!("took {messages} back; you had said: {said}"))?;
                }
                None => self.app.out.line("there is nothing to take back")?,
            },
            ("retry", Some(chat)) => {
                let cancel = Cancel::new();
                let said = heard_by(self.app, self.place, &mut self.signals, &cancel, |hear| chat.again(&cancel, hear))
                    .await?;
                match said {
                    Some(said) => return Ok(self.tell(&said)),
                    None => self.app.out.line("there is nothing to answer")?,
                }
            }
            ("branch", Some(_)) => {
                let title = Some(rest.to_owned()).filter(|title| !title.is_empty());
                if let Some(chat) = self.chat.take() {
                    let old = chat.session().id();
                    let branch = chat.branch(title).await?;
                    let id = branch.session().id();
                    self.chat = Some(branch);
                    self.app.out.line(format!("this is {id} now; {} stays as it was", short(old)))?;
                }
            }
            ("history", Some(chat)) => {
                let last = chat.last(rest.parse().ok().filter(|count| *count > 0).unwrap_or(10)).await?;
                if last.is_empty() {
                    self.app.out.line("nothing was said yet")?;
                }
                for stored in last {
                    let role = self.app.out.styles.bold(stored.message.role.as_str());
                    self.app.out.line(role)?;
                    let text = safe(&stored.message.text());
                    text.lines().try_for_each(|line| self.app.out.line(format!("  {line}")))?;
                }
            }
            ("save", Some(chat)) => {
                let label = if rest.is_empty() { "saved" } else { rest };
                let id = chat.session().checkpoint_labelled(label).await?;
                self.app.out.line(format!("checkpoint {id} ({})", plain(label)))?;
            }
            ("compact", Some(chat)) => match chat.compact(&Cancel::new()).await? {
                Some(chapter) => {
                    let messages = count(chapter.messages, "message");
                    self.app.out.line(format!("a summary stands for {messages}; every message stays"))?;
                }
                None => self.app.out.line("there is nothing to summarise yet")?,
            },
            ("session", Some(chat)) => self.app.out.line(chat.session().id().to_string())?,
            (word, _) => self.app.out.line(format!("there is no /{}: /help lists what there is", plain(word)))?,
        }
        Ok(Next::GoOn)
    }
}

/// Writes an answer as it comes. Ctrl-C stops it, and what had arrived is kept; a second one does not wait.
async fn heard_by<T, F>(
    app: &App,
    place: Place,
    signals: &mut Interrupts,
    cancel: &Cancel,
    ask: impl FnOnce(Box<dyn FnMut(Piece<'_>) + Send>) -> F,
) -> Result<T>
where
    F: Future<Output = milepost::Result<T>>,
{
    let is_quiet = app.out.json;
    let is_terminal = app.out.is_terminal();
    let wrote = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writing = std::sync::Arc::clone(&wrote);
    let hear = move |piece: Piece<'_>| {
        if let (Piece::Text(text), false) = (piece, is_quiet) {
            writing.store(true, std::sync::atomic::Ordering::Relaxed);
            let mut out = std::io::stdout().lock();
            let text = if is_terminal { safe(text) } else { text.to_owned() };
            // Who reads no more does not stop the answer from being stored.
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        }
    };
    let asking = ask(Box::new(hear));
    tokio::pin!(asking);
    let mut stops = 0;
    let said = loop {
        tokio::select! {
            said = &mut asking => break said?,
            _ = signals.next() => {
                stops += 1;
                cancel.cancel();
                if stops > 1 {
                    // What had arrived lies in the log, and becomes a message when the conversation goes on.
                    std::process::exit(INTERRUPTED.into());
                }
            }
        }
    };
    if wrote.load(std::sync::atomic::Ordering::Relaxed) {
        app.out.line("")?;
        if place == Place::Terminal {
            app.out.line("")?;
        }
    }
    Ok(said)
}
