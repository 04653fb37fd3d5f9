//! LangGraph's threads as Milepost sessions.
//!
//! A thread's namespace is a session. A checkpoint is a mark in its log; what it does not share with the one before lies in the
//! mark itself: changed values as changes of their bytes. The messages of a thread are messages of the session, each stored
//! once, and a list of messages is a run of them; so a session is read, searched and exported like any other, and a checkpoint
//! costs what changed. Writes that wait for a step are events. A checkpoint whose parent is not the newest one
//! starts a new timeline at its parent, as a restore does.
//!
//! Nobody holds such a session: every append says which head it expects, and is made anew when someone else was quicker.
//! Values stay what LangGraph's serializer made of them; MessagePack is looked into only to cut lists into items and to find out
//! what a message says.

mod anew;
mod bytes;
mod delta;
mod house;
#[cfg(test)]
mod house_tests;
#[cfg(feature = "import")]
mod import;
mod msgpack;
mod read;
mod record;
mod redact;
mod steps;
mod thread;
mod write;

#[cfg(feature = "import")]
pub use import::{Import, Imported};
pub use read::{Found, FoundValue, FoundWrite, History, Listing};
pub use thread::{Saver, ThreadKey};
pub use write::{NewCheckpoint, NewValue, NewWrite, NewWrites, Part, Spot};

/// A map's entries, and a map of entries: for whoever compares dictionaries entry by entry.
pub mod maps {
    /// The entries of a MessagePack map: the key if it is a text, and the bytes of key and value. None when the bytes are
    /// something else.
    pub fn entries(bytes: &[u8]) -> Option<Vec<(Option<&str>, &[u8])>> {
        let all = crate::msgpack::entries(bytes)?;
        // One behind the other, up to the end.
        let mut rest = bytes.len() - all.iter().map(|(_, key, value)| key.len() + value.len()).sum::<usize>();
        let entry = |(word, key, value): (_, &[u8], &[u8])| {
            let from = rest;
            rest += key.len() + value.len();
            (word, &bytes[from..rest])
        };
        Some(all.into_iter().map(entry).collect())
    }

    /// What a map of so many entries begins with.
    pub fn head(count: usize) -> Vec<u8> {
        crate::msgpack::map_head(count)
    }
}

/// An array's items, and an array of items: for whoever compares lists item by item.
pub mod arrays {
    /// The items of a MessagePack array; none when the bytes are something else.
    pub fn items(bytes: &[u8]) -> Option<Vec<&[u8]>> {
        crate::msgpack::items(bytes)
    }

    /// An array of items.
    pub fn array<'a>(items: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
        let items: Vec<&[u8]> = items.collect();
        crate::msgpack::array(items.len(), items.into_iter())
    }

    pub use crate::msgpack::Plain;

    /// What is in a message of one of LangChain's classes; none when it is something else, or more than texts and numbers.
    pub fn plain(item: &[u8]) -> Option<Plain<'_>> {
        crate::msgpack::plain(item)
    }

    /// Whether an item is a message that a session can show.
    pub fn is_message(item: &[u8]) -> bool {
        crate::msgpack::to_message(item).is_some()
    }
}
