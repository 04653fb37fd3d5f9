//! Retention, deletion and archives.

use milepost_model::{CheckpointId, Retention, SessionId, Timestamp};
use milepost_store::{Claim, DeleteMode, Deleted, SessionWriter, Store};
use serde::{Deserialize, Serialize};

use crate::engine::Milepost;
use crate::error::{Error, Result};
use crate::notice::{Notice, task_of};
use crate::project::{Owner, Projects};
use crate::transfer::{Ids, Succession, copy_session, succession};

/// Records that say where archived sessions are.
const ARCHIVED: &str = "archived";
/// So many archived sessions are read at a time.
const PAGE: usize = 1000;

/// A session that was moved to another store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Archived {
    /// The session.
    pub session_id: SessionId,
    /// The store that has it.
    pub url: String,
    /// What it is called.
    pub title: Option<String>,
    /// Its messages.
    pub message_count: u64,
    /// When it was archived.
    pub archived_at: Timestamp,
    /// It was brought back, and the archive still has a copy.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub returned: bool,
}

/// What a purge erased, or would.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Purge {
    /// Checkpoints that lay in the trash.
    pub checkpoints: Vec<CheckpointId>,
    /// Stored bytes that they needed, about.
    pub bytes: u64,
    /// Sessions that lay in the trash. What branches share with one stays, hidden.
    pub sessions: Vec<SessionId>,
    /// Sessions that were deleted before, and kept hidden for branches that are gone.
    pub hidden: Vec<SessionId>,
    /// What else has lain long enough, and somebody holds.
    pub held: usize,
}

impl Purge {
    /// There is nothing to erase.
    pub fn is_nothing(&self) -> bool {
        self.checkpoints.is_empty() && self.sessions.is_empty() && self.hidden.is_empty()
    }
}

impl Milepost {
    /// Puts checkpoints that the retention does not keep into the trash. One that somebody holds is not waited for, as it
    /// is pruned by whoever holds it.
    pub async fn prune(&self, id: SessionId, keep: &Retention) -> Result<Vec<CheckpointId>> {
        let writer = self.store().write(id, &self.claim()).await?;
        let pruned = writer.prune(keep).await;
        self.tell_trashed(writer, pruned).await
    }

    /// Puts every checkpoint of a session into the trash, also those that a retention keeps: labelled ones, and the newest.
    /// Its messages and its state stay, and it goes on from its end.
    pub async fn clear_checkpoints(&self, id: SessionId) -> Result<Vec<CheckpointId>> {
        let writer = self.write_briefly(id).await?;
        let cleared = writer.clear().await;
        self.tell_trashed(writer, cleared).await
    }

    /// Takes every checkpoint of a session out of the trash.
    pub async fn untrash_checkpoints(&self, id: SessionId) -> Result<Vec<CheckpointId>> {
        let writer = self.write_briefly(id).await?;
        let back = writer.unclear().await;
        writer.release().await?;
        Ok(back?)
    }

    /// Gives a session back, and tells which of its checkpoints went. They were asked for: the policy's are counted.
    async fn tell_trashed(
        &self,
        writer: SessionWriter,
        gone: milepost_store::Result<Vec<CheckpointId>>,
    ) -> Result<Vec<CheckpointId>> {
        let session = writer.session().await;
        writer.release().await?;
        let (timestamp, session_id, task_id) = (self.source().now(), session.id, task_of(&session));
        let (checkpoints, error) = match &gone {
            Ok(gone) => (gone.clone(), None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        if !checkpoints.is_empty() || error.is_some() {
            self.tell(Notice::CheckpointsPruned { timestamp, session_id, task_id, checkpoints, error });
        }
        Ok(gone?)
    }

    /// Erases for good what has lain in the trash for longer than the retention says, and hidden sessions that no branch
    /// needs any more, each with its artifacts and its log. What somebody holds is left for the next time. With `dry_run`
    /// it only says what it would do.
    pub async fn purge(&self, keep: &Retention, dry_run: bool) -> Result<Purge> {
        let (store, claim) = (self.store(), self.claim());
        let (marks, sessions) = store.empty_trash(keep, &claim, dry_run).await?;
        let mut purge = Purge { checkpoints: marks.checkpoints, bytes: marks.bytes, sessions, ..Purge::default() };
        if dry_run {
            purge.hidden = store.unneeded(&purge.sessions).await?;
            return Ok(purge);
        }
        purge.hidden = store.collect(&claim, false).await?.sessions;
        purge.hidden.retain(|id| !purge.sessions.contains(id));
        for id in purge.sessions.iter().chain(&purge.hidden) {
            // One that branches need is only hidden.
            if let Err(milepost_store::Error::NotFound { .. }) = store.session(*id).await {
                self.projects().await?.forget(&Owner::Session(*id)).await?;
            }
        }
        // What was removed long ago, by whomever, goes for good.
        if store.backend().features().lingers_ms > 0 {
            store.backend().compact().await?;
        }
        let (marks, sessions) = store.empty_trash(keep, &claim, true).await?;
        purge.held = marks.checkpoints.len() + sessions.len();
        Ok(purge)
    }

    /// Puts one checkpoint into the trash.
    pub async fn trash_checkpoint(&self, id: SessionId, checkpoint: CheckpointId) -> Result<()> {
        let writer = self.write_briefly(id).await?;
        let done = writer.trash_mark(checkpoint).await;
        writer.release().await?;
        Ok(done?)
    }

    /// Takes one checkpoint out of the trash.
    pub async fn untrash_checkpoint(&self, id: SessionId, checkpoint: CheckpointId) -> Result<()> {
        let writer = self.write_briefly(id).await?;
        let done = writer.untrash_mark(checkpoint).await;
        writer.release().await?;
        Ok(done?)
    }

    /// Removes a session for good, with its artifacts and its log.
    pub async fn delete(&self, id: SessionId, mode: DeleteMode, dry_run: bool) -> Result<Deleted> {
        let deleted = self.store().delete(id, mode, &self.claim(), dry_run).await?;
        if !dry_run {
            let projects = self.projects().await?;
            for session in &deleted.sessions {
                projects.forget(&Owner::Session(*session)).await?;
            }
        }
        Ok(deleted)
    }

    /// What archiving would move. Refuses what archiving refuses, as far as that is known without the other store, and
    /// changes nothing.
    pub async fn archive_preview(&self, id: SessionId, url: &str) -> Result<Archived> {
        if has_password(url) {
            return Err(Error::refused(
                format!("archiving session {id}"),
                "the URL of the archive may hold a password, and it is kept with the session",
                "leave the password out of it: it comes from the environment or from ~/.pgpass",
            ));
        }
        let session = self.store().session(id).await?;
        if !self.store().backend().children(self.store().workspace(), id).await?.is_empty() {
            return Err(Error::refused(
                format!("archiving session {id}"),
                "other sessions branched from it and share its beginning",
                "archive those first, or delete it with --keep-branches",
            ));
        }
        Ok(Archived {
            session_id: id,
            url: url.to_owned(),
            title: session.title.clone(),
            message_count: session.messages(),
            archived_at: self.source().now(),
            returned: false,
        })
    }

    /// Moves a session to another store. It is removed here only after the copy there was verified.
    pub async fn archive(&self, id: SessionId, to: &Store, url: &str) -> Result<Archived> {
        let preview = self.archive_preview(id, url).await?;
        if self.is_same(to).await? {
            return Err(Error::refused(
                format!("archiving session {id}"),
                "the archive is the store that it is in",
                "name another store",
            ));
        }
        // Nobody may write to it between the copy and the removal.
        let writer = self.write_briefly(id).await?;
        let end = self.end_of(id).await?;
        self.copy_to_archive(id, to, url).await?;
        let verified = to.verify_session(id).await?;
        if !verified.is_whole() {
            return Err(Error::refused(
                format!("archiving session {id}"),
                "the copy in the archive is not whole",
                "verify the archive; the session is still here",
            ));
        }
        let archived = Archived { archived_at: self.source().now(), ..preview };
        self.note_archived(&archived).await?;
        // Taking it over fences this writer and any other; whoever took it from this one may have added to it.
        let claim = self.claim().take_over();
        drop(self.store().write(id, &claim).await?);
        if self.end_of(id).await? != end {
            return Err(Error::refused(
                format!("archiving session {id}"),
                "someone took it over and added to it meanwhile",
                "archive it again; it is still here",
            ));
        }
        drop(writer);
        self.store().delete(id, DeleteMode::Refuse, &claim, false).await?;
        // The copy has its artifacts and its log.
        self.projects().await?.forget(&Owner::Session(id)).await?;
        Ok(archived)
    }

    async fn note_archived(&self, archived: &Archived) -> Result<()> {
        let value = serde_json::to_vec(archived).map_err(|error| Error::file("writing where a session went", error))?;
        let key = archived.session_id.to_string();
        let known = self.store().record(ARCHIVED, &key).await?.map(|record| record.version);
        self.store().put_record(ARCHIVED, &key, known, None, &value).await?;
        Ok(())
    }

    /// Copies a session to where it is archived. The copy from which it was brought back differs when something was
    /// redacted or purged since: the one that is here takes its place, unless that one was added to.
    async fn copy_to_archive(&self, id: SessionId, to: &Store, url: &str) -> Result<()> {
        let claim = self.claim();
        let copy =
            async || Box::pin(copy_session(self.store(), to, id, Ids::Preserve, &claim, &mut |_| ())).await.map(drop);
        let refused = match copy().await {
            Err(error @ Error::Apart { .. }) => error,
            outcome => return outcome,
        };
        let came_from_there = match self.store().record(ARCHIVED, &id.to_string()).await? {
            Some(record) => {
                let known = parse(&record.value, &record.key)?;
                known.returned && known.url == url
            }
            None => false,
        };
        let is_whole =
            async || Ok::<_, Error>(matches!(succession(self.store(), to, id).await?, Succession::Whole { .. }));
        if !came_from_there || !is_whole().await? {
            return Err(refused);
        }
        to.delete(id, DeleteMode::Refuse, &claim, false).await?;
        Projects::open(to).await?.forget(&Owner::Session(id)).await?;
        copy().await
    }

    /// Whether another store is this one under whatever name: what is noted in one is then seen in the other.
    async fn is_same(&self, other: &Store) -> Result<bool> {
        let (kind, key) = ("probe", self.source().id::<milepost_model::OwnerId>().to_string());
        self.store().put_record(kind, &key, None, None, b"").await?;
        let seen = other.record(kind, &key).await;
        if let Some(record) = self.store().record(kind, &key).await? {
            self.store().delete_record(kind, &key, record.version).await?;
        }
        Ok(seen?.is_some())
    }

    /// Sessions that were archived and are not back.
    pub async fn archived(&self) -> Result<Vec<Archived>> {
        Ok(self.archive_copies().await?.into_iter().filter(|archived| !archived.returned).collect())
    }

    /// Every copy of a session that is in an archive, also of those that are back.
    pub async fn archive_copies(&self) -> Result<Vec<Archived>> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = self.store().records(ARCHIVED, after.as_deref(), PAGE).await?;
            for record in &page {
                found.push(parse(&record.value, &record.key)?);
            }
            match page.last() {
                Some(last) if page.len() == PAGE => after = Some(last.key.clone()),
                _ => return Ok(found),
            }
        }
    }

    /// Where an archived session is; none when it was not archived.
    pub async fn archived_at(&self, id: SessionId) -> Result<Option<Archived>> {
        let key = id.to_string();
        let found = self.store().record(ARCHIVED, &key).await?.map(|record| parse(&record.value, &key)).transpose()?;
        Ok(found.filter(|archived| !archived.returned))
    }

    /// Forgets where an archived session is: its archive is gone. A secret that is erased later is not looked for there.
    pub async fn forget_archived(&self, id: SessionId) -> Result<()> {
        let key = id.to_string();
        if let Some(record) = self.store().record(ARCHIVED, &key).await? {
            self.store().delete_record(ARCHIVED, &key, record.version).await?;
        }
        Ok(())
    }

    /// Brings an archived session back. It stays in the archive too.
    pub async fn unarchive(&self, archived: &Archived, from: &Store) -> Result<()> {
        let claim: Claim = self.claim();
        Box::pin(copy_session(from, self.store(), archived.session_id, Ids::Preserve, &claim, &mut |_| ())).await?;
        // The copy is still there: what is redacted here must be redacted there too.
        self.note_archived(&Archived { returned: true, ..archived.clone() }).await
    }
}

/// Whether a URL holds a password: before its host, or among its parameters.
pub(crate) fn has_password(url: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else { return false };
    let before_host = rest.split_once('@').is_some_and(|(user, _)| user.contains(':'));
    before_host || rest.to_lowercase().contains("password=") || rest.to_lowercase().contains("secret")
}

fn parse(value: &[u8], key: &str) -> Result<Archived> {
    serde_json::from_slice(value).map_err(|error| {
        milepost_store::Error::Corrupt { what: format!("the record of archived session {key}"), why: error.to_string() }
            .into()
    })
}
