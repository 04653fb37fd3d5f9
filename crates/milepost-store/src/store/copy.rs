//! Reading a session out whole: every timeline it has, with what it shares with the sessions it was branched from.
//! What is read here is put into another store by an [`Importer`](super::Importer).

use milepost_model::{Entry, Position, Seq, SessionId, State, TimelineId};

use super::Store;
use super::read::decode_keyframe;
use crate::backend::{BlobId, MAIN_HEAD, Range};
use crate::codec;
use crate::error::{Error, Result};

/// A timeline, or its beginning, as it is read out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyLine {
    /// Its name.
    pub id: TimelineId,
    /// The session it belongs to: another one for what a branch shares with it.
    pub session: SessionId,
    /// The entry it continues from.
    pub parent: Option<Position>,
    /// The entry after the last.
    pub end: Seq,
}

impl CopyLine {
    /// Its first own entry.
    pub fn begins(&self) -> Seq {
        Seq(self.parent.map_or(0, |at| at.seq.0 + 1))
    }

    /// How many entries it has.
    pub fn entries(&self) -> u64 {
        self.end.0.saturating_sub(self.begins().0)
    }
}

/// An entry with everything that belongs to it.
#[derive(Debug, Clone, PartialEq)]
pub struct CopyEntry {
    /// The entry.
    pub entry: Entry,
    /// Blobs it needs besides its own payload.
    pub refs: Vec<BlobId>,
    /// The whole state after it, where the changes before it were given up by pruning.
    pub whole: Option<State>,
}

impl Store {
    /// The timelines of a session in the order they were made, the head last. What it shares with other sessions comes
    /// first, each timeline after the one that it continues.
    pub async fn copy_lines(&self, session: SessionId) -> Result<Vec<CopyLine>> {
        self.end(session).await?;
        let own = self.inner.backend.timelines(self.workspace(), session).await?;
        let mut shared: Vec<CopyLine> = Vec::new();
        for line in &own {
            let mut walked: Vec<CopyLine> = Vec::new();
            let mut next = line.parent.filter(|at| own.iter().all(|line| line.id != at.timeline));
            while let Some(at) = next {
                let (session, parent) = self.parent(at.timeline).await?;
                next = parent;
                match shared.iter_mut().find(|line| line.id == at.timeline) {
                    Some(known) => known.end = known.end.max(at.seq.next()),
                    None => walked.push(CopyLine { id: at.timeline, session, parent, end: at.seq.next() }),
                }
            }
            walked.reverse();
            shared.append(&mut walked);
        }
        let (heads, old): (Vec<_>, Vec<_>) = own.into_iter().partition(|line| line.head.as_deref() == Some(MAIN_HEAD));
        shared.extend(old.into_iter().chain(heads).map(|line| CopyLine {
            id: line.id,
            session,
            parent: line.parent,
            end: Seq(line.length),
        }));
        Ok(shared)
    }

    /// Some entries of a timeline, in order from one on; none at its end. As many as are read at a time.
    pub async fn copy_entries(&self, line: &CopyLine, from: Seq) -> Result<Vec<CopyEntry>> {
        let codec = self.codec(line.session).await?;
        let from = from.max(line.begins());
        let Some(page) = self.pages(Range::all(line.id, from, line.end)).next().await? else {
            return match from < line.end {
                true => Err(Error::corrupt(format!("timeline {}", line.id), format!("entry {from} is missing"))),
                false => Ok(Vec::new()),
            };
        };
        let frames = self.inner.backend.keyframes(self.workspace(), line.id).await?;
        let mut copied = Vec::with_capacity(page.entries.len());
        for (expected, (seq, entry)) in (from.0..).zip(&page.entries) {
            let at = Position { timeline: line.id, seq: *seq };
            if seq.0 != expected {
                return Err(Error::corrupt(format!("timeline {}", line.id), format!("entry {expected} is missing")));
            }
            codec::check(at, entry)?;
            let body = codec.body(at, entry, page.payload(entry))?;
            let refs = entry.refs.iter().skip(usize::from(codec::is_blob(entry))).copied().collect();
            let whole = match frames.iter().any(|(at, pinned)| at == seq && *pinned) {
                true => self.inner.backend.keyframe(self.workspace(), at).await?.filter(|frame| frame.at == at),
                false => None,
            };
            let whole = whole.map(|frame| decode_keyframe(&codec, &frame)).transpose()?;
            copied.push(CopyEntry {
                entry: Entry { at, time: entry.time, kind: entry.kind, body },
                refs,
                whole: whole.map(State::try_from).transpose()?,
            });
        }
        Ok(copied)
    }

    /// The content of a blob that an entry of this session names, checked against its name.
    pub async fn copy_blob(&self, session: SessionId, id: BlobId) -> Result<Vec<u8>> {
        let codec = self.codec(session).await?;
        let mut found = self.inner.backend.get_blobs(self.workspace(), vec![id]).await?;
        let stored = found.pop().flatten().ok_or_else(|| Error::not_found("blob", milepost_model::Hash(id.0)))?;
        codec.open_blob(id, &stored).map(std::borrow::Cow::into_owned)
    }
}
