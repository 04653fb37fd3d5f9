//! Reading messages around what is damaged. A store refuses a whole range for one entry in it that is not what was
//! written; a person wants to read the rest.

use milepost_model::{EntryKind, Position, Seq, SessionId};
use milepost_store::{MessageQuery, StoredMessage};

use crate::engine::Milepost;
use crate::error::Result;

/// So many entries are looked at together, from the end on.
const WINDOW: u64 = 256;
/// So many damaged places are told one by one; those beyond are counted.
const TOLD: usize = 10;

/// Messages, and what could not be read between them.
#[derive(Debug, Clone, Default)]
pub struct Salvaged {
    /// The messages, in order.
    pub messages: Vec<StoredMessage>,
    /// What is damaged there, in words, each with its entry. Empty when all is whole.
    pub damaged: Vec<String>,
    /// How many of those are messages, or may be: one of which not even the kind can be known.
    pub lost: u64,
}

impl Milepost {
    /// Messages up to a session's head, or up to and with an entry; damaged entries are passed over, and named.
    pub async fn messages_past_damage(
        &self,
        id: SessionId,
        at: Option<Position>,
        query: &MessageQuery,
    ) -> Result<Salvaged> {
        match self.messages_in(id, at, query).await {
            Err(error) if error.is_damage() => {}
            whole => return Ok(Salvaged { messages: whole?, ..Salvaged::default() }),
        }
        let store = self.store();
        let end = match at {
            Some(at) => at.seq.next(),
            None => match store.backend().session(store.workspace(), id).await? {
                Some(head) => Seq(head.timeline.length.max(head.noted_length)),
                None => return Err(milepost_store::Error::NotFound { what: "session", id: id.to_string() }.into()),
            },
        };
        let (from, to) = (query.from.unwrap_or_default(), query.to.unwrap_or(end).min(end));
        let wanted = query.last.unwrap_or(usize::MAX);
        let (mut found, mut damaged, mut lost, mut high) = (Vec::new(), Vec::new(), 0, to);
        // Backwards, window by window, until there is enough.
        while high > from && found.len() < wanted {
            let low = Seq(high.0.saturating_sub(WINDOW)).max(from);
            let mut window = Salvaged::default();
            self.split(id, at, query, (low, high), &mut window).await?;
            window.messages.append(&mut found);
            window.damaged.append(&mut damaged);
            lost += window.lost;
            (found, damaged, high) = (window.messages, window.damaged, low);
        }
        let excess = found.len().saturating_sub(wanted);
        found.drain(..excess);
        found.truncate(query.first.unwrap_or(usize::MAX));
        if damaged.len() > TOLD {
            let more = damaged.len() - TOLD;
            damaged.truncate(TOLD);
            damaged.push(format!("{more} more entries are damaged or missing"));
        }
        Ok(Salvaged { messages: found, damaged, lost })
    }

    async fn messages_in(
        &self,
        id: SessionId,
        at: Option<Position>,
        query: &MessageQuery,
    ) -> milepost_store::Result<Vec<StoredMessage>> {
        match at {
            Some(at) => self.store().messages_at(at, query).await,
            None => self.store().messages(id, query).await,
        }
    }

    /// Reads a range; where that is refused, each half of it by itself.
    async fn split(
        &self,
        id: SessionId,
        at: Option<Position>,
        query: &MessageQuery,
        range: (Seq, Seq),
        into: &mut Salvaged,
    ) -> Result<()> {
        let mut open = vec![range];
        while let Some((from, to)) = open.pop() {
            let part =
                MessageQuery { channel: query.channel.clone(), from: Some(from), to: Some(to), ..Default::default() };
            match self.messages_in(id, at, &part).await {
                Ok(messages) => into.messages.extend(messages),
                Err(error) if error.is_damage() && to.0 - from.0 > 1 => {
                    let middle = Seq(from.0 + (to.0 - from.0) / 2);
                    open.extend([(middle, to), (from, middle)]);
                }
                Err(error) if error.is_damage() => {
                    into.lost += u64::from(may_be_message(&error));
                    into.damaged.push(error.finding());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Whether what is damaged is a message, as far as is known: the store names an entry by its kind first.
fn may_be_message(error: &milepost_store::Error) -> bool {
    let milepost_store::Error::Corrupt { what, .. } = error else { return true };
    let kind = what.split(' ').next();
    ![EntryKind::State, EntryKind::Mark, EntryKind::Event].iter().any(|other| kind == Some(other.as_str()))
}
