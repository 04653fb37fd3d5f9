//! What a checkpoint's mark says: how to make each of its values, out of itself and of marks and messages before it.

use std::collections::BTreeMap;

use milepost_model::Seq;
use milepost_store::Error;

use crate::bytes::{In, Out, damaged};

/// The version of the records' form.
const VERSION: u8 = 1;
/// After so many changes, or when they are as large as the value, a value is written whole.
pub(crate) const MAX_CHAIN: usize = 64;
/// Shorter values are always written whole.
pub(crate) const SHORT: usize = 48;
/// What is not a channel: the checkpoint without its values, and its metadata.
pub(crate) const SKELETON: &str = "\0checkpoint";
pub(crate) const METADATA: &str = "\0metadata";

/// Items of a list: runs of messages of one of the session's channels, by their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Runs(pub Vec<(u64, u64)>);

impl Runs {
    pub fn len(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    pub fn push(&mut self, from: u64, count: u64) {
        match self.0.last_mut() {
            _ if count == 0 => {}
            Some((start, length)) if *start + *length == from => *length += count,
            _ => self.0.push((from, count)),
        }
    }

    /// Items `from..to` of the list.
    pub fn part(&self, from: u64, to: u64) -> Runs {
        let (mut runs, mut at) = (Runs::default(), 0);
        for (start, count) in &self.0 {
            let (begin, end) = (from.max(at), to.min(at + count));
            if begin < end {
                runs.push(start + (begin - at), end - begin);
            }
            at += count;
        }
        runs
    }

    pub fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|(from, count)| *from..from + count)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out::default();
        for (from, count) in &self.0 {
            out.number(*from);
            out.number(*count);
        }
        out.0
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let (mut bytes, mut runs, mut total) = (In(bytes), Vec::new(), 0u64);
        while !bytes.0.is_empty() {
            let (from, count) = (bytes.number()?, bytes.number()?);
            total = total
                .checked_add(count)
                .filter(|total| *total <= u64::from(u32::MAX))
                .ok_or_else(|| damaged("a list"))?;
            from.checked_add(count).ok_or_else(|| damaged("a list"))?;
            runs.push((from, count));
        }
        Ok(Self(runs))
    }
}

/// How a value's bytes are to be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Form {
    /// As LangGraph's serializer wrote them, with the word by which it reads them again.
    Typed(String),
    /// They are [`Runs`]: a list of messages.
    List,
}

/// How to make a value: bytes of this mark, applied to what marks before it say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recipe {
    pub form: Form,
    /// Marks before this one whose bytes come first: the whole value, then changes of it.
    pub chain: Vec<u64>,
    /// What this mark has of it; nothing when the value is what the chain says.
    pub own: Option<Vec<u8>>,
}

/// A checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub id: String,
    pub parent: Option<String>,
    /// The greatest id up to here on the way that leads here.
    pub greatest: String,
    /// Entries before this one with writes that were made for it.
    pub early: Vec<u64>,
    /// Entries before this one with writes that changes of its values copy from.
    pub sources: Vec<u64>,
    pub values: BTreeMap<String, Recipe>,
}

impl Record {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out::default();
        out.byte(VERSION);
        out.text(self.parent.as_deref().unwrap_or_default());
        out.text(if self.greatest == self.id { "" } else { &self.greatest });
        out.rising(&self.early);
        out.rising(&self.sources);
        out.number(self.values.len() as u64);
        for (name, recipe) in &self.values {
            out.text(name);
            match &recipe.form {
                Form::List => out.byte(0),
                Form::Typed(word) if word == "msgpack" => out.byte(1),
                Form::Typed(word) => {
                    out.byte(2);
                    out.text(word);
                }
            }
            out.rising(&recipe.chain);
            match &recipe.own {
                None => out.byte(0),
                Some(own) => {
                    out.byte(1);
                    out.bytes(own);
                }
            }
        }
        out.0
    }

    /// The id is the mark's label.
    pub fn decode(id: &str, bytes: &[u8]) -> Result<Self, Error> {
        let (mut bytes, id) = (In(bytes), id.to_owned());
        if bytes.byte()? != VERSION {
            return Err(damaged("a checkpoint of a newer version"));
        }
        let parent = Some(bytes.text()?).filter(|parent| !parent.is_empty()).map(str::to_owned);
        let greatest = Some(bytes.text()?).filter(|id| !id.is_empty()).map_or_else(|| id.clone(), str::to_owned);
        let early = bytes.rising()?;
        let sources = bytes.rising()?;
        let mut values = BTreeMap::new();
        for _ in 0..bytes.count()? {
            let name = bytes.text()?.to_owned();
            let form = match bytes.byte()? {
                0 => Form::List,
                1 => Form::Typed("msgpack".to_owned()),
                2 => Form::Typed(bytes.text()?.to_owned()),
                _ => return Err(damaged("a value")),
            };
            let chain = bytes.rising()?;
            let own = if bytes.byte()? == 1 { Some(bytes.bytes()?.to_vec()) } else { None };
            values.insert(name, Recipe { form, chain, own });
        }
        Ok(Self { id, parent, greatest, early, sources, values })
    }
}

/// A write that waits for the next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Write {
    /// Its place among its task's writes; below zero for LangGraph's own.
    pub index: i64,
    pub channel: String,
    pub form: Form,
    pub bytes: Vec<u8>,
}

/// The writes of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Writes {
    pub checkpoint: String,
    pub task: String,
    pub path: String,
    /// A write that is there already is replaced; else it stays.
    pub replace: bool,
    pub writes: Vec<Write>,
}

impl Writes {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out::default();
        out.byte(VERSION);
        out.text(&self.task);
        out.text(&self.path);
        out.byte(u8::from(self.replace));
        out.number(self.writes.len() as u64);
        for write in &self.writes {
            out.number((write.index << 1 ^ write.index >> 63).cast_unsigned());
            out.text(&write.channel);
            match &write.form {
                Form::List => out.byte(0),
                Form::Typed(word) => {
                    out.byte(1);
                    out.text(word);
                }
            }
            out.bytes(&write.bytes);
        }
        out.0
    }

    /// What changes of values may copy from.
    pub fn beside(&self) -> impl Iterator<Item = &[u8]> {
        self.writes
            .iter()
            .filter(|write| write.form != Form::List && write.bytes.len() > SHORT)
            .map(|write| write.bytes.as_slice())
    }

    pub fn decode(checkpoint: &str, bytes: &[u8]) -> Result<Self, Error> {
        let mut bytes = In(bytes);
        if bytes.byte()? != VERSION {
            return Err(damaged("writes of a newer version"));
        }
        let (task, path, replace) = (bytes.text()?.to_owned(), bytes.text()?.to_owned(), bytes.byte()? == 1);
        let mut writes = Vec::new();
        for _ in 0..bytes.count()? {
            let index = bytes.number()?;
            let channel = bytes.text()?.to_owned();
            let form = if bytes.byte()? == 0 { Form::List } else { Form::Typed(bytes.text()?.to_owned()) };
            let index = (index >> 1).cast_signed() ^ -(index & 1).cast_signed();
            writes.push(Write { index, channel, form, bytes: bytes.bytes()?.to_vec() });
        }
        Ok(Self { checkpoint: checkpoint.to_owned(), task, path, replace, writes })
    }
}

/// Numbers of entries that lie near each other, to be read together.
pub(crate) fn clusters(mut numbers: Vec<u64>) -> Vec<(Seq, Seq)> {
    const GAP: u64 = 256;
    numbers.sort_unstable();
    let mut ranges: Vec<(Seq, Seq)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, to)) if number < to.0 + GAP => *to = Seq(number + 1),
            _ => ranges.push((Seq(number), Seq(number + 1))),
        }
    }
    ranges
}
