//! The agent log: lines that are only ever added, for a project or a session.
//!
//! The newest lines lie in one record, full groups of 64 in records of their own. So adding a line costs the same
//! however long the log is, and line n is found without reading what comes before.

use milepost_model::Timestamp;
use serde::{Deserialize, Serialize};

use super::artifact::Owner;
use super::keep::{Projects, damaged};
use crate::{Error, Result};

const HEAD: &str = "agent-log";
const GROUP: &str = "agent-log-group";
const GROUP_LINES: usize = 64;
/// The longest line (8 KiB).
pub const MAX_LINE_BYTES: usize = 8 << 10;
/// The most lines of one log (1,000,000).
pub const MAX_LOG_LINES: u64 = 1_000_000;

/// A line of an agent log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// When it was added.
    pub at: Timestamp,
    /// What it says.
    pub text: String,
    /// Something was erased of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redacted: bool,
}

/// The end of a log: how many full groups there are, and the lines after them.
#[derive(Default, Serialize, Deserialize)]
struct Head {
    groups: u64,
    lines: Vec<LogLine>,
}

impl Head {
    fn len(&self) -> u64 {
        self.groups * GROUP_LINES as u64 + self.lines.len() as u64
    }
}

impl Projects {
    /// Adds a text to a log, each of its lines as one. Returns how many lines the log has now.
    pub async fn log(&self, owner: &Owner, text: &str) -> Result<u64> {
        let at = self.store.source().now();
        let mut length = None;
        // As a whole: a secret may have several lines.
        let clean = self.redacted(text).await?;
        for line in clean.as_deref().unwrap_or(text).lines() {
            if line.len() > MAX_LINE_BYTES {
                let why = format!("it has {} bytes, the limit MAX_LINE_BYTES is {MAX_LINE_BYTES}", line.len());
                return Err(Error::refused(
                    format!("a line of the log of {owner}"),
                    why,
                    "shorten it; the lines before it were added",
                ));
            }
            length = Some(self.add_line(owner, &LogLine { at, text: line.to_owned(), redacted: false }).await?);
        }
        match length {
            Some(length) => Ok(length),
            None => self.log_length(owner).await,
        }
    }

    /// Takes lines over from elsewhere, with their times; `from` is the number of the first. Those that are here already
    /// stay; refused when others are here in their place.
    pub(crate) async fn bring_log(&self, owner: &Owner, from: u64, lines: &[LogLine]) -> Result<()> {
        let length = self.log_length(owner).await?;
        let common = length.saturating_sub(from).min(lines.len() as u64) as usize;
        let refuse = |why: &str| {
            Error::refused(
                format!("bringing the log of {owner}"),
                why,
                "keep one of the two: remove the log here first",
            )
        };
        if from > length {
            return Err(refuse("lines before it are missing"));
        }
        if self.log_lines(owner, from, common).await? != lines[..common] {
            return Err(refuse("the log here went its own way"));
        }
        for line in &lines[common..] {
            if line.text.len() > MAX_LINE_BYTES {
                return Err(refuse("a line of it has more than MAX_LINE_BYTES bytes"));
            }
            self.add_line(owner, line).await?;
        }
        Ok(())
    }

    async fn add_line(&self, owner: &Owner, line: &LogLine) -> Result<u64> {
        let key = self.owner_key(owner);
        loop {
            let full = self
                .change(HEAD, &key, |found: Option<Head>| {
                    let mut head = found.unwrap_or_default();
                    if head.len() >= MAX_LOG_LINES {
                        let why = format!("it has {MAX_LOG_LINES} lines, the limit MAX_LOG_LINES");
                        return Err(Error::refused(
                            format!("adding to the log of {owner}"),
                            why,
                            "begin a new session",
                        ));
                    }
                    if head.lines.len() >= GROUP_LINES {
                        return Ok((None, Err(head)));
                    }
                    head.lines.push(line.clone());
                    let length = head.len();
                    Ok((Some(head), Ok(length)))
                })
                .await?;
            match full {
                Ok(length) => return Ok(length),
                Err(head) => self.close_group(&key, head).await?,
            }
        }
    }

    /// Moves a full group into a record of its own. Whoever does it second finds it done.
    async fn close_group(&self, key: &str, full: Head) -> Result<()> {
        let lines = full.lines;
        self.change(GROUP, &group_key(key, full.groups), |found: Option<Vec<LogLine>>| match found {
            Some(_) => Ok((None, ())),
            None => Ok((Some(lines.clone()), ())),
        })
        .await?;
        self.change(HEAD, key, |found: Option<Head>| {
            let head = found.unwrap_or_default();
            match head.groups == full.groups {
                true => Ok((Some(Head { groups: head.groups + 1, lines: Vec::new() }), ())),
                false => Ok((None, ())),
            }
        })
        .await
    }

    /// How many lines a log has.
    pub async fn log_length(&self, owner: &Owner) -> Result<u64> {
        let head: Option<Head> = self.get(HEAD, &self.owner_key(owner)).await?;
        Ok(head.unwrap_or_default().len())
    }

    /// Lines of a log from one on, counted from 0, at most so many.
    pub async fn log_lines(&self, owner: &Owner, from: u64, limit: usize) -> Result<Vec<LogLine>> {
        let key = self.owner_key(owner);
        let head: Head = self.get(HEAD, &key).await?.unwrap_or_default();
        let mut lines = Vec::new();
        let mut next = from;
        while lines.len() < limit && next < head.len() {
            let (group, skip) = (next / GROUP_LINES as u64, (next % GROUP_LINES as u64) as usize);
            let found = match group < head.groups {
                true => self.get(GROUP, &group_key(&key, group)).await?.ok_or_else(|| damaged("a log"))?,
                false => head.lines.clone(),
            };
            let taken = found.into_iter().skip(skip).take(limit - lines.len());
            let before = lines.len();
            lines.extend(taken);
            if lines.len() == before {
                return Err(damaged("a log"));
            }
            next += (lines.len() - before) as u64;
        }
        Ok(lines)
    }

    pub(super) async fn forget_log(&self, owner: &Owner) -> Result<()> {
        let key = self.owner_key(owner);
        let Some(head) = self.get::<Head>(HEAD, &key).await? else { return Ok(()) };
        self.remove(HEAD, &key).await?;
        for group in 0..=head.groups {
            self.remove(GROUP, &group_key(&key, group)).await?;
        }
        Ok(())
    }
}

fn group_key(key: &str, group: u64) -> String {
    format!("{key}/{group:08}")
}
