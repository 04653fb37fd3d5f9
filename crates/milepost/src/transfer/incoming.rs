//! Pieces becoming a session of a store.

use std::collections::HashMap;

use milepost_model::{Body, Hash, Id, Position, SessionId};
use milepost_store::{BlobId, Claim, CopyEntry, Importer, Store};

use super::names::Names;
use super::outgoing::{Line, Piece, PieceEntry};
use super::{Ids, Imported};
use crate::error::{Error, Result};

/// Writes pieces. Nothing is seen of the session until it is finished.
pub(super) struct Incoming<'a> {
    store: &'a Store,
    claim: &'a Claim,
    ids: Ids,
    original: SessionId,
    importer: Option<Importer>,
    names: Names,
    blobs: HashMap<Hash, BlobId>,
    entries: u64,
    /// What the session is made of, for whoever begins again.
    pub made_of: String,
}

impl<'a> Incoming<'a> {
    pub fn new(store: &'a Store, original: SessionId, ids: Ids, claim: &'a Claim) -> Self {
        let (names, blobs) = (Names::default(), HashMap::new());
        Self { store, claim, ids, original, importer: None, names, blobs, entries: 0, made_of: String::new() }
    }

    /// Goes on with a copy that has a part of the pieces already, and these blobs.
    pub async fn more(
        store: &'a Store,
        original: SessionId,
        claim: &'a Claim,
        blobs: &HashMap<BlobId, Hash>,
    ) -> Result<Self> {
        let mut incoming = Self::new(store, original, Ids::Preserve, claim);
        incoming.importer = Some(store.import_more(original, claim).await?);
        for (id, hash) in blobs {
            incoming.names.insert(hash, Hash(id.0));
            incoming.blobs.insert(*hash, *id);
        }
        Ok(incoming)
    }

    fn new_id<T: Id>(&mut self, old: T) -> T {
        if self.ids == Ids::Remap {
            self.names.insert(old, self.store.source().id::<T>());
        }
        self.names.id(old)
    }

    /// The session that the pieces become; known once its first timeline was taken.
    pub fn session(&self) -> SessionId {
        self.names.id(self.original)
    }

    pub async fn take(&mut self, piece: Piece) -> Result<()> {
        match piece {
            Piece::Line(line) => self.line(line).await,
            Piece::Blob(hash, content) => {
                let id = self.importer()?.put_blob(&content).await?;
                self.names.insert(hash, Hash(id.0));
                self.blobs.insert(hash, id);
                Ok(())
            }
            Piece::Entry(entry) => self.entry(*entry).await,
        }
    }

    fn importer(&mut self) -> Result<&mut Importer> {
        self.importer.as_mut().ok_or_else(|| Error::import("the session", "it does not begin with a timeline"))
    }

    async fn line(&mut self, line: Line) -> Result<()> {
        let id = self.new_id(line.id);
        let parent = line.parent.map(|at| Position { timeline: self.names.id(at.timeline), ..at });
        match (self.importer.as_mut(), parent) {
            (None, None) => {
                let session = self.new_id(self.original);
                let made_of = self.made_of.as_bytes();
                self.importer = Some(self.store.import_of(session, id, self.claim, made_of).await?);
                Ok(())
            }
            (Some(importer), Some(parent)) => Ok(importer.open_line(id, parent).await?),
            _ => {
                let why = "only the first timeline, and no other, begins by itself";
                Err(Error::import(format!("timeline {}", line.id), why))
            }
        }
    }

    async fn entry(&mut self, piece: PieceEntry) -> Result<()> {
        let PieceEntry { mut entry, blobs, whole } = piece;
        let mut refs = Vec::with_capacity(blobs.len());
        for hash in blobs {
            let known = self.blobs.get(&hash);
            refs.push(
                *known.ok_or_else(|| Error::import(format!("blob {hash}"), "an entry needs it before it comes"))?,
            );
        }
        entry.at.timeline = self.names.id(entry.at.timeline);
        match &mut entry.body {
            Some(Body::Event(event)) => self.names.rename(&mut event.data),
            Some(Body::Mark(mark)) => {
                self.names.rename(&mut mark.extra);
                mark.id = self.new_id(mark.id);
            }
            _ => {}
        }
        self.entries += 1;
        Ok(self.importer()?.add(CopyEntry { entry, refs, whole }).await?)
    }

    /// Makes the session whole and shows it.
    pub async fn finish(mut self) -> Result<Imported> {
        let importer = self.importer.take().ok_or_else(|| Error::import("the session", "it has no timeline"))?;
        let writer = importer.finish().await?;
        let session = writer.id();
        writer.release().await?;
        let shown = self.store.session(session).await?;
        Ok(Imported {
            session,
            original: self.original.to_string(),
            entries: self.entries,
            messages: shown.messages(),
            checkpoints: shown.checkpoints,
            notes: Vec::new(),
        })
    }

    /// Leaves nothing behind.
    pub async fn discard(mut self) -> Result<()> {
        match self.importer.take() {
            Some(importer) => Ok(importer.discard().await?),
            None => Ok(()),
        }
    }
}
