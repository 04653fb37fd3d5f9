//! What branches share. A message lies with the session that it was written to; where that one is not looked at (it was
//! deleted or trashed, or is no session that was asked for), it is found for a branch that has it too.

use std::collections::HashMap;

use milepost_model::{Position, Seq, Session, SessionId};

use crate::engine::Milepost;
use crate::error::Result;

/// Branches, each with the last entries on the timelines that lead to its end.
type Branches = Vec<(SessionId, Vec<Position>)>;

/// Sessions that are looked at for the sake of those that branched from them.
#[derive(Debug, Clone, Default)]
pub(super) struct Heirs(HashMap<SessionId, Branches>);

impl Heirs {
    /// The branch that has an entry of a session; none when none has it that is looked for.
    pub fn of(&self, session: SessionId, at: Position) -> Option<SessionId> {
        let has = |way: &[Position]| way.iter().any(|last| last.timeline == at.timeline && at.seq <= last.seq);
        self.0.get(&session)?.iter().find(|(_, way)| has(way)).map(|(id, _)| *id)
    }

    /// The sessions that are looked at for others.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.0.keys().copied()
    }

    pub fn knows(&self, session: SessionId) -> bool {
        self.0.contains_key(&session)
    }
}

impl Milepost {
    /// Those that sessions branched from, as far as they are not among these sessions themselves.
    pub(super) async fn heirs(&self, wanted: &[Session]) -> Result<Heirs> {
        let known: HashMap<SessionId, &Session> = wanted.iter().map(|session| (session.id, session)).collect();
        let mut heirs = Heirs::default();
        for session in wanted.iter().filter(|session| session.branch.is_some()) {
            let (mut branch, mut way) = (session.branch, None);
            while let Some(from) = branch.map(|branch| branch.session) {
                branch = match known.get(&from) {
                    Some(parent) => parent.branch,
                    None => {
                        let way = match &way {
                            Some(way) => Vec::clone(way),
                            None => way.insert(self.way_to_end(session).await?).clone(),
                        };
                        heirs.0.entry(from).or_default().push((session.id, way));
                        self.visible_or_not(from).await?.and_then(|parent| parent.branch)
                    }
                };
            }
        }
        Ok(heirs)
    }

    /// The branches of a session that is not shown, and of its branches that are not; those that are shown.
    pub(super) async fn learn_heirs(&self, session: SessionId, heirs: &mut Heirs) -> Result<()> {
        let (mut branches, mut open, mut seen) = (Branches::new(), vec![session], vec![session]);
        while let Some(id) = open.pop() {
            for line in self.store().backend().children(self.store().workspace(), id).await? {
                if seen.contains(&line.session) {
                    continue;
                }
                seen.push(line.session);
                match self.visible_or_not(line.session).await? {
                    Some(branch) if !branch.hidden && branch.trashed.is_none() => {
                        branches.push((branch.id, self.way_to_end(&branch).await?));
                    }
                    Some(branch) => open.push(branch.id),
                    None => {}
                }
            }
        }
        heirs.0.insert(session, branches);
        Ok(())
    }

    async fn way_to_end(&self, session: &Session) -> Result<Vec<Position>> {
        self.way(Position { timeline: session.head, seq: Seq(u64::MAX) }).await
    }

    /// A session, also one that no list shows; none when it is gone or cannot be read.
    async fn visible_or_not(&self, id: SessionId) -> Result<Option<Session>> {
        match self.store().session(id).await {
            Ok(session) => Ok(Some(session)),
            Err(milepost_store::Error::NotFound { .. } | milepost_store::Error::Key(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
