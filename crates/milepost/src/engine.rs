//! The engine: an open workspace, and everything that needs no session of one's own.

use std::collections::BTreeMap;
use std::sync::Arc;

use milepost_context::redact::Rules;
use milepost_context::request::AgentDescription;
use milepost_context::tokens::Tokenizer;
use milepost_model::{Policy, PolicyPatch, SessionId, SessionPatch, Source, Status, Trigger};
use milepost_store::{Append, Changes, Claim, NewMark, SessionPage, SessionQuery, SessionWriter, Store};
use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::config::{Compression, Summaries, Template};
use crate::error::{Error, Result};
use crate::notice::{Counts, Notice};
use crate::redaction::Redaction;
use crate::session::{NewSession, Session};

/// So often it is looked whether a session that someone else holds is free.
const HELD_POLL: std::time::Duration = std::time::Duration::from_millis(20);
/// Notices that wait for a slow listener; those beyond are lost to it.
const WAITING_NOTICES: usize = 1024;

/// How the engine works. The defaults are good ones.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EngineOptions {
    /// How the store is opened.
    pub store: milepost_store::Options,
    /// When checkpoints are taken and how many are kept, unless a session or a run says otherwise.
    pub policy: Policy,
    /// What never reaches the store in clear; none for no redaction.
    pub redaction: Option<Rules>,
    /// Secrets that are found are kept, encrypted, so that an authorised resume gets them back.
    pub vault: bool,
    /// Who holds the sessions that are written to, in words a person understands.
    pub holder: String,
    /// How long to wait for a session that someone else holds before giving up, where it is only written to briefly (0 ms).
    pub wait_ms: u64,
    /// The model that requests are for, by its name: tokens are counted as it counts them. None: as the current models of
    /// OpenAI do.
    pub model: Option<String>,
    /// The most tokens that a request to a model may have.
    pub budget_tokens: usize,
    /// So many of them an estimate keeps free for what the user asks: over the budget with them, it is time to compact.
    pub reserve_tokens: usize,
    /// So many of the last messages go into a request.
    pub last_messages: usize,
    /// How checkpoint files beside the store are packed.
    pub compression: Compression,
    /// Which agents may read which other agents' summaries.
    pub summaries: Summaries,
    /// Kinds of agents beside those that Milepost brings along.
    pub agents: BTreeMap<String, AgentDescription>,
    /// Where the policies of kinds of agents differ.
    pub agent_policies: BTreeMap<String, PolicyPatch>,
    /// Templates of artifacts.
    pub templates: BTreeMap<String, Template>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            store: milepost_store::Options::default(),
            policy: Policy::default(),
            redaction: Some(Rules::new()),
            vault: false,
            holder: format!("process {}", std::process::id()),
            wait_ms: 0,
            model: None,
            budget_tokens: milepost_context::request::DEFAULT_BUDGET,
            reserve_tokens: milepost_context::request::RESERVED_FOR_PROMPT,
            last_messages: milepost_context::request::DEFAULT_MESSAGES,
            compression: Compression::default(),
            summaries: Summaries::default(),
            agents: BTreeMap::new(),
            agent_policies: BTreeMap::new(),
            templates: BTreeMap::new(),
        }
    }
}

/// An open workspace. Cheap to clone; clones share everything.
#[derive(Debug, Clone)]
pub struct Milepost {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    policy: Policy,
    redaction: Redaction,
    holder: String,
    wait_ms: u64,
    model: Option<String>,
    budget_tokens: usize,
    reserve_tokens: usize,
    last_messages: usize,
    compression: Compression,
    summaries: Summaries,
    agents: BTreeMap<String, AgentDescription>,
    agent_policies: BTreeMap<String, PolicyPatch>,
    templates: BTreeMap<String, Template>,
    notices: broadcast::Sender<Notice>,
    counts: Counts,
}

impl Milepost {
    /// Opens the store at a URL (`sqlite:PATH`, `postgres://…`, `s3://…`, `file:///…`, `memory:`), or makes it.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, EngineOptions::default()).await
    }

    /// Opens a store with options of one's own.
    pub async fn open_with(url: &str, options: EngineOptions) -> Result<Self> {
        if options.vault && options.store.keys.master.is_none() {
            // Before a workspace is begun, which would stay without encryption.
            return Err(crate::redaction::no_vault(&options.store.workspace));
        }
        let store = Store::open(url, options.store.clone()).await?;
        Self::on(store, options).await
    }

    /// Works on a store that is open already.
    pub async fn on(store: Store, options: EngineOptions) -> Result<Self> {
        let (notices, _) = broadcast::channel(WAITING_NOTICES);
        let redaction = Redaction::new(options.redaction, &options.policy.exclude_keys, options.vault, &store).await?;
        Ok(Self {
            inner: Arc::new(Inner {
                store,
                policy: options.policy,
                redaction,
                holder: options.holder,
                wait_ms: options.wait_ms,
                model: options.model,
                budget_tokens: options.budget_tokens,
                reserve_tokens: options.reserve_tokens,
                last_messages: options.last_messages,
                compression: options.compression,
                summaries: options.summaries,
                agents: options.agents,
                agent_policies: options.agent_policies,
                templates: options.templates,
                notices,
                counts: Counts::default(),
            }),
        })
    }

    /// The store below.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// Where time, randomness and ids come from.
    pub fn source(&self) -> &Source {
        self.store().source()
    }

    /// The policy unless a session or a run says otherwise.
    pub fn policy(&self) -> &Policy {
        &self.inner.policy
    }

    pub(crate) fn redaction(&self) -> &Redaction {
        &self.inner.redaction
    }

    /// The most tokens that a request to a model may have.
    pub fn budget_tokens(&self) -> usize {
        self.inner.budget_tokens
    }

    /// Counts tokens as the model does that requests are for. Its vocabulary is unpacked when it is first needed.
    pub fn tokenizer(&self) -> Tokenizer {
        self.inner.model.as_deref().map_or_else(Tokenizer::default, Tokenizer::for_model)
    }

    pub(crate) fn reserve_tokens(&self) -> usize {
        self.inner.reserve_tokens
    }

    /// How checkpoint files beside the store are packed.
    pub fn compression(&self) -> &Compression {
        &self.inner.compression
    }

    pub(crate) fn last_messages(&self) -> usize {
        self.inner.last_messages
    }

    pub(crate) fn summaries(&self) -> &Summaries {
        &self.inner.summaries
    }

    /// The policy of a session: the engine's, its kind of agent's, its own.
    pub fn policy_of(&self, session: &milepost_model::Session) -> Result<Policy> {
        let mut policy = self.policy().clone();
        if let Some(patch) = session.agent.as_ref().and_then(|kind| self.inner.agent_policies.get(kind)) {
            policy = policy.with(patch);
        }
        match session.extra.get(crate::session::POLICY_KEY) {
            Some(own) => Ok(policy.with(&crate::config::stored_policy_patch(own)?)),
            None => Ok(policy),
        }
    }

    /// Does something with a session and gives it back, also when it fails.
    async fn briefly<T>(&self, id: SessionId, work: impl AsyncFnOnce(&Session) -> Result<T>) -> Result<T> {
        let session = self.hold(id).await?;
        let outcome = work(&session).await;
        let released = session.release().await;
        let value = outcome?;
        released?;
        Ok(value)
    }

    /// A kind of agent: one of the user's own, or one that Milepost brings along.
    pub fn agent(&self, kind: &str) -> Option<AgentDescription> {
        self.inner.agents.get(kind).cloned().or_else(|| AgentDescription::built_in(kind))
    }

    pub(crate) fn template(&self, name: &str) -> Option<&Template> {
        self.inner.templates.get(name)
    }

    /// Asks for a session in the name of this engine.
    pub fn claim(&self) -> Claim {
        Claim::new(self.inner.holder.clone())
    }

    /// What checkpoints did since the engine was opened: made, failed, resumed from.
    pub fn counts(&self) -> &Counts {
        &self.inner.counts
    }

    /// One notice for every checkpoint that was made, failed or was restored, by this engine, from now on.
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.inner.notices.subscribe()
    }

    pub(crate) fn has_listeners(&self) -> bool {
        self.inner.notices.receiver_count() > 0
    }

    pub(crate) fn notify(&self, notice: Notice) {
        self.inner.counts.count(&notice);
        self.tell(notice);
    }

    /// Tells something that does not count.
    pub(crate) fn tell(&self, notice: Notice) {
        // Nobody listens just now.
        let _ = self.inner.notices.send(notice);
    }

    /// Hints of what any process writes from now on. See [`Milepost::follow`] for one session's entries.
    pub fn changes(&self) -> Result<Changes> {
        Ok(self.store().changes()?)
    }

    /// Begins a session and holds it. Its first checkpoint is taken at once.
    pub async fn create(&self, new: NewSession) -> Result<Session> {
        let NewSession { id, mut patch, mut state, policy } = new;
        if let Some(policy) = &policy {
            // A session with a policy that cannot be used could never be held again.
            crate::config::policy_patch(policy)?;
            patch.0.insert(crate::session::POLICY_KEY.to_owned(), policy.clone());
        }
        self.redaction().patch(&mut patch)?;
        let new = milepost_store::NewSession { id, patch };
        let writer = self.store().create(new, &self.claim()).await?;
        let session = Session::hold(self.clone(), writer, None).await?;
        let found = session.redaction().state(&mut state);
        session.keep_secrets(found).await?;
        let mut append = Append::new();
        if state != milepost_model::State::default() {
            append = append.state(state);
        }
        session.begin(append).await?;
        Ok(session)
    }

    /// The session of exactly this project, feature, task and stage that is still open, or a new one. A kind of agent that
    /// is named must be the session's; where none is, a session of nobody in particular comes before those of others, the
    /// last active first. Whoever asks at the same time gets the same session. One of which nothing is whole is begun anew
    /// with its messages ([`Notice::BegunAnew`] tells).
    pub async fn get_or_create(&self, key: &SessionKey) -> Result<Session> {
        if *key == SessionKey::default() {
            return Err(Error::refused(
                "getting a session",
                "nothing was said of what it is about",
                "name a project, a feature, a task, a stage or a kind of agent",
            ));
        }
        let found = self.every_session(&key.query()).await?;
        let of_others = || found.iter().find(|session| key.is_of_some_agent(session));
        if let Some(session) = found.iter().find(|session| key.is_of(session)).or_else(of_others) {
            return self.go_on(session.id).await;
        }
        // Several may find nothing at the same moment: a record says which session it is to be.
        const TRIES: usize = 16;
        let name = key.name();
        for _ in 0..TRIES {
            let record = self.store().record(KEY_RECORD, &name).await?;
            let noted = record.as_ref().and_then(|record| std::str::from_utf8(&record.value).ok()?.parse().ok());
            match noted {
                Some(id) if !self.is_over(id, key).await? => return self.make_or_go_on(id, key).await,
                _ => {}
            }
            let id: SessionId = self.source().id();
            let version = record.map(|record| record.version);
            match self.store().put_record(KEY_RECORD, &name, version, None, id.to_string().as_bytes()).await {
                Ok(_) => return self.make_or_go_on(id, key).await,
                // Someone else was first: it is theirs.
                Err(milepost_store::Error::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::refused("getting a session", "many others are making it at this moment", "try again"))
    }

    /// Whether a session that was noted for a key is one to go on with no more. One that is not there yet is about to begin.
    async fn is_over(&self, id: SessionId, key: &SessionKey) -> Result<bool> {
        match self.store().session(id).await {
            Ok(session) => Ok(session.trashed.is_some() || !is_open(session.status) || !key.is_of(&session)),
            Err(milepost_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn make_or_go_on(&self, id: SessionId, key: &SessionKey) -> Result<Session> {
        match self.create(NewSession { id: Some(id), patch: key.patch(), ..NewSession::default() }).await {
            Err(Error::Store(milepost_store::Error::Conflict(milepost_store::Conflict::Exists { .. }))) => {
                self.go_on(id).await
            }
            other => other,
        }
    }

    async fn go_on(&self, id: SessionId) -> Result<Session> {
        Ok(self.resume(id, crate::resume::Resume { begin_anew: true, ..Default::default() }).await?.session)
    }

    /// The session that was asked for, resumed; or a new one when none was. Where nothing of it is whole, the one that is
    /// begun anew with its messages: [`Notice::BegunAnew`] tells, and its id is another.
    pub async fn get_or_resume(&self, id: Option<SessionId>, new: NewSession) -> Result<Session> {
        match id {
            Some(id) => self.go_on(id).await,
            None => self.create(new).await,
        }
    }

    /// Holds a session as it is, without resuming it: to add to it, or to change what a list shows of it. When someone
    /// else holds it, waits for as long as [`EngineOptions::wait_ms`] says.
    pub async fn hold(&self, id: SessionId) -> Result<Session> {
        let writer = self.write_briefly(id).await?;
        Session::hold(self.clone(), writer, None).await
    }

    /// Takes a session's lease, waiting for it as long as the options say.
    pub(crate) async fn write_briefly(&self, id: SessionId) -> Result<SessionWriter> {
        self.write_within(id, &self.claim(), self.inner.wait_ms).await
    }

    /// Takes a session's lease, now or as soon as whoever has it gives it back within a time.
    pub(crate) async fn write_within(&self, id: SessionId, claim: &Claim, wait_ms: u64) -> Result<SessionWriter> {
        let mut left = wait_ms.div_ceil(HELD_POLL.as_millis() as u64);
        loop {
            match self.store().write(id, claim).await {
                Err(milepost_store::Error::Held { .. }) if left > 0 => {
                    left -= 1;
                    tokio::time::sleep(HELD_POLL).await;
                }
                outcome => return Ok(outcome?),
            }
        }
    }

    /// Holds a session in the name of someone, or takes it over.
    pub async fn hold_as(&self, id: SessionId, claim: &Claim) -> Result<Session> {
        let writer = self.store().write(id, claim).await?;
        Session::hold(self.clone(), writer, None).await
    }

    /// Lists sessions.
    pub async fn sessions(&self, query: &SessionQuery) -> Result<SessionPage> {
        Ok(self.store().sessions(query).await?)
    }

    /// Every session that fits, page by page.
    pub async fn every_session(&self, query: &SessionQuery) -> Result<Vec<milepost_model::Session>> {
        let (mut query, mut found) = (query.clone(), Vec::new());
        loop {
            let page = self.sessions(&query).await?;
            found.extend(page.sessions);
            match page.next {
                Some(next) => query.after = Some(next),
                None => return Ok(found),
            }
        }
    }

    /// Sessions that can go on, last active first: everything that is not completed.
    pub async fn resumable(&self, query: SessionQuery) -> Result<SessionPage> {
        let status = Status::ALL.into_iter().filter(|status| is_open(*status)).collect();
        self.sessions(&SessionQuery { status, ..query }).await
    }

    /// The sessions of a task by the state that it was in, newest first.
    pub async fn task_sessions(&self, task: &str) -> Result<BTreeMap<String, Vec<SessionId>>> {
        let query = SessionQuery { task: Some(task.to_owned()), by_creation: true, ..SessionQuery::default() };
        let mut stages: BTreeMap<String, Vec<SessionId>> = BTreeMap::new();
        for session in self.every_session(&query).await? {
            stages.entry(session.stage.unwrap_or_default()).or_default().push(session.id);
        }
        Ok(stages)
    }

    /// Changes what a list shows of a session: title, tags, project and the like.
    pub async fn patch(&self, id: SessionId, patch: SessionPatch) -> Result<()> {
        self.briefly(id, async |session| session.patch(patch).await).await
    }

    /// Pauses a session that nobody holds: a checkpoint, and the status `paused`.
    pub async fn pause(&self, id: SessionId, why: Option<&str>) -> Result<milepost_model::CheckpointId> {
        self.briefly(id, async |session| session.pause(why).await).await
    }

    /// Completes a session that nobody holds.
    pub async fn complete(&self, id: SessionId) -> Result<milepost_model::CheckpointId> {
        self.briefly(id, async |session| session.complete().await).await
    }

    /// Takes a checkpoint of a session that nobody holds.
    pub async fn checkpoint(&self, id: SessionId, mark: NewMark) -> Result<milepost_model::CheckpointId> {
        self.briefly(id, async |session| session.checkpoint(mark).await).await
    }

    /// Begins a session that shares everything up to a checkpoint of another. Nothing is copied.
    pub async fn branch(&self, from: SessionId, point: &crate::point::Point, new: NewSession) -> Result<Session> {
        let mark = self.mark(from, point).await?;
        if let milepost_model::Resumable::No(why) = &mark.checkpoint.resumable {
            return Err(self.not_resumable(&mark, why).await);
        }
        self.branch_at(mark.at, new).await
    }

    /// Begins a session that shares everything up to and with an entry of another, whether a checkpoint was taken there or not.
    pub async fn branch_at(&self, at: milepost_model::Position, new: NewSession) -> Result<Session> {
        let NewSession { id, mut patch, state: _, policy } = new;
        self.redaction().patch(&mut patch)?;
        if let Some(policy) = policy {
            crate::config::policy_patch(&policy)?;
            patch.0.insert(crate::session::POLICY_KEY.to_owned(), policy);
        }
        let new = milepost_store::NewSession { id, patch };
        let writer = self.store().branch(at, new, &self.claim()).await?;
        let session = Session::hold(self.clone(), writer, None).await?;
        session.begin(Append::new()).await?;
        Ok(session)
    }

    /// Finishes what is under way.
    pub async fn close(&self) -> Result<()> {
        Ok(self.store().close().await?)
    }
}

/// Whether a session with this status can go on.
pub(crate) fn is_open(status: Status) -> bool {
    status != Status::Completed
}

/// Records that name the session of a key.
const KEY_RECORD: &str = "session-key";

/// What a session is found by: whatever of it is given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionKey {
    /// The project.
    pub project: Option<String>,
    /// The kind of agent.
    pub agent: Option<String>,
    /// The feature.
    pub feature: Option<String>,
    /// The task.
    pub task: Option<String>,
    /// The state that the task is in: `planning`, `in_dev`, `in_qa`, ….
    pub stage: Option<String>,
}

impl SessionKey {
    fn parts(&self) -> [(&'static str, &Option<String>); 5] {
        [
            ("project", &self.project),
            ("agent", &self.agent),
            ("feature", &self.feature),
            ("task", &self.task),
            ("stage", &self.stage),
        ]
    }

    /// The same, with the project's id where its name was given.
    pub async fn of_known_project(self, engine: &Milepost) -> Result<Self> {
        Ok(match &self.project {
            Some(given) => Self { project: Some(engine.project_meant(given).await?), ..self },
            None => self,
        })
    }

    /// Open sessions of this key, last active first.
    pub fn query(&self) -> SessionQuery {
        SessionQuery {
            status: Status::ALL.into_iter().filter(|status| is_open(*status)).collect(),
            project: self.project.clone(),
            agent: self.agent.clone(),
            feature: self.feature.clone(),
            task: self.task.clone(),
            stage: self.stage.clone(),
            ..SessionQuery::default()
        }
    }

    /// What a session of this key begins with.
    pub fn patch(&self) -> SessionPatch {
        let given = self.parts().into_iter().filter_map(|(key, text)| Some((key, text.as_ref()?)));
        given.fold(SessionPatch::new(), |patch, (key, text)| patch.with(key, Value::String(text.clone())))
    }

    /// Whether a session is of this key: what is not given must not be there.
    fn is_of(&self, session: &milepost_model::Session) -> bool {
        let has = [&session.project, &session.agent, &session.feature, &session.task, &session.stage];
        self.parts().into_iter().zip(has).all(|((_, wanted), has)| wanted == has)
    }

    /// The same where no agent was named, whoever works on it.
    fn is_of_some_agent(&self, session: &milepost_model::Session) -> bool {
        self.agent.is_none() && Self { agent: session.agent.clone(), ..self.clone() }.is_of(session)
    }

    /// The same for the same key, and nothing that tells what it is.
    fn name(&self) -> String {
        let parts: Vec<_> = self.parts().into_iter().map(|(_, text)| text).collect();
        blake3::hash(json!(parts).to_string().as_bytes()).to_hex().to_string()
    }
}

/// Whether a trigger is one that somebody asked for, rather than one that the policy chose.
pub(crate) fn is_asked_for(trigger: &Trigger) -> bool {
    matches!(trigger, Trigger::Manual | Trigger::Milestone | Trigger::Pause | Trigger::Final)
}

impl EngineOptions {
    /// As a configuration says. Keys are read from where they are kept; the environment only through `lookup`.
    pub fn from_settings(settings: &crate::config::Settings, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let wrong = |error: milepost_context::redact::RulesError| Error::Config {
            place: "redaction".to_owned(),
            why: error.to_string(),
            instead: "mend the pattern".to_owned(),
        };
        let mut rules = Rules::new();
        for (number, pattern) in settings.redaction.patterns.iter().enumerate() {
            rules = rules.pattern(&format!("pattern-{}", number + 1), pattern).map_err(wrong)?;
        }
        for pattern in &settings.redaction.allow {
            rules = rules.allow(pattern).map_err(wrong)?;
        }
        Ok(Self {
            store: settings.options(lookup)?,
            policy: settings.policy.clone(),
            redaction: settings.redaction.enabled.then_some(rules),
            vault: settings.redaction.vault,
            model: settings.model_name().map(str::to_owned),
            budget_tokens: usize::try_from(settings.budget.tokens).unwrap_or(usize::MAX),
            reserve_tokens: usize::try_from(settings.budget.reserve_tokens).unwrap_or(usize::MAX),
            last_messages: usize::try_from(settings.budget.last_messages).unwrap_or(usize::MAX),
            compression: settings.compression.clone(),
            summaries: settings.summaries.clone(),
            agents: settings.agents.iter().map(|(kind, agent)| (kind.clone(), described(kind, agent))).collect(),
            agent_policies: settings.agents.iter().map(|(kind, agent)| (kind.clone(), agent.policy.clone())).collect(),
            templates: settings.templates.clone(),
            ..Self::default()
        })
    }
}

fn described(kind: &str, agent: &crate::config::AgentKind) -> AgentDescription {
    AgentDescription {
        agent_type: kind.to_owned(),
        role: agent.role.clone(),
        instructions: agent.instructions.clone(),
        allowed_tools: agent.allowed_tools.clone().unwrap_or_default(),
        tool_instructions: agent.tool_instructions.clone(),
    }
}
