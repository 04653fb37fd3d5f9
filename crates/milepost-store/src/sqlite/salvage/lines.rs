//! What the timelines of a damaged file must have been. Their rows have no checksum, but most of what they say is said
//! elsewhere too: in three indexes over them, by the rows of sessions, and by the entries, whose checksums only fit the
//! right timeline.

use std::collections::{BTreeMap, BTreeSet};

use milepost_model::{SessionId, TimelineId};
use rusqlite::types::Value as Sql;

use super::pages::{Row, number, text};
use super::{entry, is_whole};
use crate::backend::MAIN_HEAD;

/// Timelines by their number.
pub(super) type Lines = BTreeMap<i64, Line>;

/// One timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub workspace: String,
    pub id: TimelineId,
    pub session: String,
    /// The number of its parent, and where it leaves that.
    parent: Option<(i64, i64)>,
    head: Option<String>,
}

impl Line {
    /// The number of its first entry.
    pub fn begins(&self) -> i64 {
        self.parent.map_or(0, |(_, seq)| seq + 1)
    }

    /// Its row in the table.
    pub fn row(&self, no: i64) -> Row {
        let optional = |number: Option<i64>| number.map_or(Sql::Null, Sql::Integer);
        vec![
            Sql::Integer(no),
            Sql::Text(self.workspace.clone()),
            Sql::Text(self.id.to_string()),
            Sql::Text(self.session.clone()),
            optional(self.parent.map(|(no, _)| no)),
            optional(self.parent.map(|(_, seq)| seq)),
            self.head.clone().map_or(Sql::Null, Sql::Text),
            Sql::Integer(0),
        ]
    }
}

/// What the rows of indexes say of timelines, by their number.
#[derive(Debug, Default)]
pub(super) struct Hints {
    ids: BTreeMap<i64, Vec<(String, TimelineId)>>,
    /// The index over sessions looks the same, so that this may hold what is said of the session of that number.
    sessions: BTreeMap<i64, Vec<(String, String)>>,
    parents: BTreeMap<i64, Vec<i64>>,
}

impl Hints {
    /// Takes a row of an index, if it is one of those.
    pub fn take(&mut self, row: &Row) -> bool {
        match row.as_slice() {
            [Sql::Text(workspace), Sql::Text(name), Sql::Integer(no)] => {
                if let Ok(id) = name.parse::<TimelineId>() {
                    self.ids.entry(*no).or_default().push((workspace.clone(), id));
                } else if name.parse::<SessionId>().is_ok() {
                    self.sessions.entry(*no).or_default().push((workspace.clone(), name.clone()));
                } else {
                    return false;
                }
            }
            [Sql::Integer(parent), Sql::Integer(no)] if parent != no => {
                self.parents.entry(*no).or_default().push(*parent);
            }
            _ => return false,
        }
        true
    }
}

/// All that bears witness.
struct Witnesses<'a> {
    rows: &'a BTreeMap<i64, Row>,
    hints: &'a Hints,
    entries: &'a BTreeMap<i64, Row>,
    /// Workspace and id of every session that has a row, by its number.
    sessions: BTreeMap<i64, (&'a str, &'a str)>,
}

/// Says what every timeline must have been.
pub(super) fn settle(
    rows: &BTreeMap<i64, Row>,
    hints: &Hints,
    sessions: &BTreeMap<i64, Row>,
    entries: &BTreeMap<i64, Row>,
) -> Lines {
    let sessions = sessions.iter().filter_map(|(no, row)| Some((*no, text(row, 1).zip(text(row, 2))?))).collect();
    let all = Witnesses { rows, hints, entries, sessions };
    let numbers: BTreeSet<i64> = rows.keys().chain(hints.ids.keys()).copied().collect();
    let mut lines: Lines = numbers.iter().filter_map(|no| Some((*no, all.line(*no)?))).collect();
    all.drop_doubles(&mut lines);
    let known: BTreeSet<i64> = lines.keys().copied().collect();
    for (no, line) in &mut lines {
        line.parent = all.parent(*no, line.id, &known);
    }
    set_heads(&mut lines);
    lines
}

impl<'a> Witnesses<'a> {
    fn line(&self, no: i64) -> Option<Line> {
        let listed = self.hints.ids.get(&no).into_iter().flatten().map(|(_, id)| *id);
        let told = self.rows.get(&no).and_then(|row| text(row, 2)?.parse().ok());
        let id = listed.chain(told).max_by_key(|id| self.fitting(no, *id))?;
        let row = self.row_of(no, id);
        let (workspace, session) = self.session(no, row)?;
        let head = row.and_then(|row| text(row, 6)).map(str::to_owned);
        Some(Line { workspace, id, session, parent: None, head })
    }

    /// The row of a timeline: the one that has its id, or its number.
    fn row_of(&self, no: i64, id: TimelineId) -> Option<&'a Row> {
        let has_id = |row: &&Row| text(row, 2).is_some_and(|text| text == id.to_string());
        let at_no = self.rows.get(&no);
        at_no.filter(has_id).or_else(|| self.rows.values().find(has_id)).or(at_no)
    }

    /// How many of the entries under this number fit this timeline.
    fn fitting(&self, no: i64, id: TimelineId) -> usize {
        /// So many decide it.
        const ENOUGH: usize = 16;
        let own = self.entries.range(no << 32..(no + 1) << 32);
        own.filter(|(key, row)| entry(row).is_some_and(|entry| is_whole(id, **key, &entry))).take(ENOUGH).count()
    }

    /// The session of a timeline: what its row says if an index says it too, or else whichever of them names a session
    /// that is known.
    fn session(&self, no: i64, row: Option<&Row>) -> Option<(String, String)> {
        let mut listed = self.hints.sessions.get(&no).cloned().unwrap_or_default();
        // One of them is what the index over sessions says of the session of that number.
        let other = self.sessions.get(&no);
        if let Some(at) = listed.iter().position(|(workspace, id)| other == Some(&(workspace.as_str(), id.as_str()))) {
            listed.swap_remove(at);
        }
        let told = row.and_then(|row| Some((text(row, 1)?.to_owned(), text(row, 3)?.to_owned())));
        let told = told.filter(|(_, session)| session.parse::<SessionId>().is_ok());
        let is_known =
            |name: &(String, String)| self.sessions.values().any(|known| *known == (name.0.as_str(), name.1.as_str()));
        let agreed = told.as_ref().filter(|told| listed.contains(told));
        let known = || told.iter().chain(&listed).find(|name| is_known(name));
        agreed.or_else(known).or(told.as_ref()).or(listed.first()).cloned()
    }

    /// Where a timeline begins. An entry before the place that its row names says that the row is wrong; a later one
    /// does not, for the first ones may be lost.
    fn parent(&self, no: i64, id: TimelineId, known: &BTreeSet<i64>) -> Option<(i64, i64)> {
        let row = self.row_of(no, id);
        let listed = self.hints.parents.get(&no).map(Vec::as_slice).unwrap_or_default();
        let told = row.and_then(|row| number(row, 4));
        let agreed = told.filter(|told| listed.contains(told));
        let parent = agreed.or_else(|| listed.iter().copied().chain(told).find(|no| known.contains(no)))?;
        let own = self.entries.range(no << 32..(no + 1) << 32);
        let first = own
            .filter(|(key, row)| entry(row).is_some_and(|entry| is_whole(id, **key, &entry)))
            .map(|(key, _)| key & 0xffff_ffff)
            .next();
        let told = row.and_then(|row| number(row, 5)).filter(|seq| (0..u32::MAX.into()).contains(seq));
        let seq = match (told, first) {
            (Some(told), Some(first)) => told.min(first - 1),
            (Some(told), None) => told,
            (None, first) => first? - 1,
        };
        (seq >= 0).then_some((parent, seq))
    }

    /// Of two numbers that claim the same timeline, the one under which its entries lie.
    fn drop_doubles(&self, lines: &mut Lines) {
        let mut best: BTreeMap<(String, TimelineId), i64> = BTreeMap::new();
        for (no, line) in &*lines {
            let name = (line.workspace.clone(), line.id);
            let rival = best.entry(name).or_insert(*no);
            if self.fitting(*no, line.id) > self.fitting(*rival, line.id) {
                *rival = *no;
            }
        }
        lines.retain(|no, line| best.get(&(line.workspace.clone(), line.id)) == Some(no));
    }
}

/// Every session has one head: the newest of those that say so, or else its newest timeline.
fn set_heads(lines: &mut Lines) {
    let mut heads: BTreeMap<(String, String), (bool, bool, i64)> = BTreeMap::new();
    for (no, line) in &*lines {
        let claim = (line.head.as_deref() == Some(MAIN_HEAD), line.head.is_some(), *no);
        let head = heads.entry((line.workspace.clone(), line.session.clone())).or_insert(claim);
        *head = claim.max(*head);
    }
    for (no, line) in lines {
        let is_head = heads.get(&(line.workspace.clone(), line.session.clone())).is_some_and(|(.., head)| head == no);
        if is_head {
            line.head = Some(MAIN_HEAD.to_owned());
        } else if line.head.as_deref() == Some(MAIN_HEAD) {
            line.head = None;
        }
    }
}
