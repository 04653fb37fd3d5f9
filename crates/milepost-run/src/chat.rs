//! A conversation with a model that survives anything: what a person says is durable before it is sent, what arrives of an
//! answer is kept while it arrives, and the history stays valid whatever happens in between.

use std::sync::{Arc, Mutex, PoisonError};

use milepost::context::compact::Extractive;
use milepost::context::history::Dialect;
use milepost::context::request::MessagesRequest;
use milepost::model::{Body, Seq};
use milepost::{
    Channel, Chapter, Compact, Event, Mark, MarkQuery, Message, MessageQuery, Milepost, NewMark, NewSession, Point,
    Result, Resume, Resumed, Role, Session, SessionId, SessionInfo, Status, StoredMessage, Timestamp, Together,
    Trigger, relative,
};
use milepost_model::delta::StatePath;
use milepost_models::{Answer, Cancel, Error as ModelError, Limited, Model, Outcome, Piece, Request, Timer, Told};
use serde_json::{Value, json};

use crate::run::budget::{self, Purse};
use crate::run::{Budget, Ledger, Spent, wake};

/// The event that holds what had arrived of an answer.
const PART: &str = "answer_part";
/// The channel of the summaries that models wrote, beside the conversation: what they cost counts. No node is called so.
const SUMMARY: &str = "main/summary";
/// How often what has arrived is kept, in milliseconds.
const KEEP_EVERY_MS: u64 = 250;
/// So many of the last messages are shown, and told to the model, when a conversation goes on.
pub const LAST_MESSAGES: usize = 5;

/// How often a model is asked for a person who is not there before the conversation pauses with the reason (8).
pub const WAKE_TRIES: u32 = 8;
/// A model that says that its limit is used up is waited for so long, in milliseconds (5 seconds); for longer the session waits.
const MAX_READY_MS: i64 = 5000;

/// Who an answer is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whom {
    /// A person who hears it.
    Person,
    /// A person who is greeted. Nobody waits for a greeting.
    Back,
    /// A person who is not there: a wake-up was due. It is the try with this number.
    Away(u32),
}

/// How a conversation is left.
#[derive(Default)]
enum Leave {
    #[default]
    Paused,
    /// For a reason.
    PausedBecause(String),
    /// It goes on by itself, when this is over. There is a wake-up.
    Waits(String),
}

/// How an answer came.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// All of it.
    Whole(Answer),
    /// A part of it, which is kept.
    Cut {
        /// What arrived.
        answer: Answer,
        /// Why no more did.
        why: ModelError,
    },
    /// Nothing before a moment.
    Limited(Limited),
    /// Nothing.
    Failed(ModelError),
    /// The model was not asked: the session's budget is used up. What was said is kept.
    OverBudget(String),
}

/// Where a conversation was left.
#[derive(Debug)]
pub struct Left {
    /// The session as it was.
    pub info: SessionInfo,
    /// Nothing of it could be gone on from: it goes on as another session.
    pub anew: Option<milepost::Anew>,
    /// Its last messages.
    pub last: Vec<StoredMessage>,
    /// An answer was cut by a crash: what had arrived of it is a message now.
    pub mended: bool,
    /// The person's last message has no answer.
    pub is_unanswered: bool,
}

/// What was taken back.
#[derive(Debug)]
pub struct Undone {
    /// The checkpoint that the session was set back to.
    pub mark: Mark,
    /// What the person had said.
    pub said: String,
    /// How many messages were taken back.
    pub messages: usize,
}

/// A conversation, held by this process.
pub struct Chat {
    session: Session,
    model: Arc<dyn Model>,
    dialect: Dialect,
    max_tokens: Option<u32>,
    timer: Timer,
    /// How it is left after what was said last.
    leave: Mutex<Leave>,
    /// What it may cost, and what it has.
    purse: Counted,
    /// What it had cost when this process came.
    before: Spent,
    /// What was spent in sessions that this process went on from, in branches.
    elsewhere: Spent,
    /// The model said that the next call makes no sense before.
    ready_at: Mutex<Option<Timestamp>>,
}

impl Chat {
    /// Begins a conversation in a new session.
    pub async fn begin(engine: &Milepost, new: NewSession, model: Arc<dyn Model>, dialect: Dialect) -> Result<Self> {
        let session = engine.create(new).await?;
        Ok(Self::with(session, model, dialect, Counted::default()))
    }

    fn with(session: Session, model: Arc<dyn Model>, dialect: Dialect, purse: Counted) -> Self {
        let (leave, ready_at, before) = (Mutex::default(), Mutex::default(), purse.spent());
        let (max_tokens, timer, elsewhere) = (None, Timer::real(), Spent::default());
        Self { session, model, dialect, max_tokens, timer, leave, purse, before, elsewhere, ready_at }
    }

    /// Goes on with a conversation. What a crash left of an answer becomes a message.
    pub async fn resume(
        engine: &Milepost,
        id: SessionId,
        how: Resume,
        model: Arc<dyn Model>,
        dialect: Dialect,
    ) -> Result<(Self, Left)> {
        let info = engine.store().session(id).await?;
        refuse_a_run(engine, &info).await?;
        let Resumed { session, anew, .. } = engine.resume(id, how).await?;
        let id = session.id();
        let purse = Counted::of(&session).await?;
        let chat = Self::with(session, model, dialect, purse);
        let mended = chat.mend().await?;
        let last = chat.last(LAST_MESSAGES).await?;
        let is_unanswered = last.last().is_some_and(|stored| stored.message.role == Role::User);
        // Whoever only looks in leaves it as it was found: the answer still comes by itself.
        if let (true, Some(due)) = (is_unanswered, wake::due(engine, id).await?) {
            let what = format!("the model is asked again at {due}");
            *chat.leave.lock().unwrap_or_else(PoisonError::into_inner) = Leave::Waits(what);
        }
        Ok((chat, Left { info, anew, last, mended, is_unanswered }))
    }

    /// With a limit to the tokens of an answer.
    #[must_use]
    pub fn max_tokens(mut self, tokens: Option<u32>) -> Self {
        self.max_tokens = tokens;
        self
    }

    /// With a budget, which is kept in the session; as it was when none is given.
    pub async fn budget(mut self, given: Option<Budget>) -> Result<Self> {
        let Some(given) = given else { return Ok(self) };
        let spent = self.purse.spent();
        let at = |name: &str| StatePath::root().key("execution").key(name);
        let kept = [(at("budget"), budget::to_value(&given)), (at("spent"), budget::to_value(&spent))];
        self.session.set(&kept).await?;
        self.purse = Counted { purse: Purse::new(given, spent), is_recorded: true };
        Ok(self)
    }

    /// What it cost since this process came: answers, greetings and summaries.
    pub fn spent(&self) -> Spent {
        let mut spent = self.elsewhere;
        spent.add(&self.purse.spent().since(&self.before));
        spent
    }

    /// What it may cost.
    pub fn may_cost(&self) -> Budget {
        self.purse.budget()
    }

    /// With another way to wait, for tests.
    #[must_use]
    pub fn timer(mut self, timer: Timer) -> Self {
        self.timer = timer;
        self
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The last messages of the conversation.
    pub async fn last(&self, count: usize) -> Result<Vec<StoredMessage>> {
        let query = MessageQuery { channel: Some(Channel::MAIN), last: Some(count), ..MessageQuery::default() };
        Ok(self.session.engine().store().messages(self.session.id(), &query).await?)
    }

    /// Holds the session for longer while nothing is said. Whether somebody else has taken it, the next message tells.
    pub async fn stay(&self) {
        let _ = self.session.renew().await;
    }

    /// Says something, and hears the answer. What was said is durable before the model is asked; the answer when this
    /// returns, or as much of it as came.
    pub async fn say(&self, text: &str, cancel: &Cancel, heard: impl FnMut(Piece<'_>) + Send) -> Result<Said> {
        self.say_for(text, cancel, heard, Whom::Person).await
    }

    async fn say_for(
        &self,
        text: &str,
        cancel: &Cancel,
        heard: impl FnMut(Piece<'_>) + Send,
        whom: Whom,
    ) -> Result<Said> {
        if self.purse.empty().is_none() {
            self.compact_if_needed(cancel).await?;
        }
        let request = self.request(text).await?;
        // What can be gone back to: the moment before it was said.
        self.session.checkpoint(NewMark::new(Trigger::UserCheckpoint).description("before the next message")).await?;
        self.session.append(Message::new(Role::User, text)).await?;
        self.ask(request, cancel, heard, whom).await
    }

    /// Asks once more for an answer to the person's last message. An answer that is there is left behind, on the old
    /// timeline. None when there is nothing to answer.
    pub async fn again(&self, cancel: &Cancel, heard: impl FnMut(Piece<'_>) + Send) -> Result<Option<Said>> {
        self.again_for(cancel, heard, Whom::Person).await
    }

    /// Asks once more for an answer that something stood in the way of, for a person who is not there: a wake-up was due. When
    /// the model cannot be reached, or cannot answer now, there is another wake-up, later each time; after [`WAKE_TRIES`],
    /// or when it would not help, the conversation is left paused with the reason. None when there is an answer.
    pub async fn woken(&self, cancel: &Cancel, heard: impl FnMut(Piece<'_>) + Send) -> Result<Option<Said>> {
        let last = self.last(1).await?;
        let is_whole = |message: &Message| message.role != Role::User && !message.extra.contains_key("incomplete");
        if last.last().is_none_or(|stored| is_whole(&stored.message)) {
            wake::forget(self.session.engine(), self.session.id()).await?;
            return Ok(None);
        }
        let tries = wake::tries(self.session.engine(), self.session.id()).await?;
        self.again_for(cancel, heard, Whom::Away(tries + 1)).await
    }

    async fn again_for(
        &self,
        cancel: &Cancel,
        heard: impl FnMut(Piece<'_>) + Send,
        whom: Whom,
    ) -> Result<Option<Said>> {
        let unanswered = self.session.engine().build_unanswered(self.session.id(), self.dialect).await?;
        if let Some(built) = unanswered {
            // It stays where it is: whoever is killed now leaves it as it was, with its wake-up.
            return self.ask(self.request_of(built), cancel, heard, whom).await.map(Some);
        }
        match self.take_back().await? {
            Some(undone) => self.say_for(&undone.said, cancel, heard, whom).await.map(Some),
            None => Ok(None),
        }
    }

    /// Lets the model greet a person who is back with where things were left.
    pub async fn greet(&self, left: &Left, cancel: &Cancel, heard: impl FnMut(Piece<'_>) + Send) -> Result<Said> {
        let now = self.session.engine().source().now();
        let project = left.info.project.as_deref().unwrap_or("none");
        let lines = left.last.iter().map(|stored| {
            let text: String = stored.message.text().chars().take(500).collect();
            format!("{}: {text}", stored.message.role)
        });
        let prompt = format!(
            "The person is back. Project: {project}. Last active: {}. Messages so far: {}. The last of them:\n\n{}\n\n\
             Greet them in two or three sentences: say where things were left, and what could be next. Do not begin new work.",
            relative(left.info.active, now),
            left.info.messages(),
            lines.collect::<Vec<_>>().join("\n"),
        );
        let request = self.request(&prompt).await?;
        self.ask(request, cancel, heard, Whom::Back).await
    }

    async fn request(&self, prompt: &str) -> Result<Request> {
        let built = self.session.engine().build_messages(self.session.id(), prompt, self.dialect).await?;
        Ok(self.request_of(built))
    }

    fn request_of(&self, built: MessagesRequest) -> Request {
        let mut request = Request::new(built.view.into_messages());
        request.system = Some(built.system_prompt).filter(|text| !text.trim().is_empty());
        if let Some(tokens) = self.max_tokens {
            request.max_tokens = tokens;
        }
        request
    }

    async fn ask(
        &self,
        request: Request,
        cancel: &Cancel,
        mut heard: impl FnMut(Piece<'_>) + Send,
        whom: Whom,
    ) -> Result<Said> {
        if let Some(why) = self.purse.empty() {
            return self.over_budget(why).await;
        }
        if let Some(limited) = self.until_ready(cancel).await {
            let said = Said::Limited(limited);
            self.keep(&said, whom).await?;
            return Ok(said);
        }
        let arrived = Arc::new(Mutex::new(String::new()));
        let noting = Arc::clone(&arrived);
        let mut listen = move |piece: Piece<'_>| {
            if let Piece::Text(text) = piece {
                noting.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
            }
            heard(piece);
        };
        let outcome = {
            let asking = self.model.ask(&request, cancel, &mut listen);
            tokio::pin!(asking);
            let (mut kept, mut looks) = (0, 0);
            let renew_after = (self.session.renew_every_ms() / KEEP_EVERY_MS).max(1);
            loop {
                tokio::select! {
                    outcome = &mut asking => break outcome,
                    () = self.timer.wait_ms(KEEP_EVERY_MS) => {
                        looks += 1;
                        if looks % renew_after == 0 {
                            self.stay().await;
                        }
                        let text = arrived.lock().unwrap_or_else(PoisonError::into_inner).clone();
                        let part = fit_to_keep(&text);
                        // Each holds all that came before it, so they become rarer as they grow.
                        if part.len() > kept + part.len() / 16 {
                            kept = part.len();
                            // The answer itself tells whether storing fails.
                            let _ = self.session.event(Event::new(PART, json!({ "text": part }))).await;
                        }
                    }
                }
            }
        };
        let said = match outcome {
            Ok(Outcome::Whole(answer)) => {
                *self.ready_at.lock().unwrap_or_else(PoisonError::into_inner) = answer.ready_at;
                Said::Whole(answer)
            }
            Ok(Outcome::Cut { answer, why }) if answer.message.text().is_empty() => {
                self.count_cut(answer).await?;
                Said::Failed(why)
            }
            Ok(Outcome::Cut { answer, why }) => Said::Cut { answer, why },
            Ok(Outcome::Limited(limited)) => Said::Limited(limited),
            Err(why) => Said::Failed(why),
        };
        self.keep(&said, whom).await?;
        Ok(said)
    }

    /// Nothing more may be spent: the session is left paused, with the reason.
    async fn over_budget(&self, why: String) -> Result<Said> {
        wake::forget(self.session.engine(), self.session.id()).await?;
        *self.leave.lock().unwrap_or_else(PoisonError::into_inner) = Leave::PausedBecause(why.clone());
        Ok(Said::OverBudget(why))
    }

    /// Waits until the model can be asked, as far as it said so; the limit when that is long.
    async fn until_ready(&self, cancel: &Cancel) -> Option<Limited> {
        let until = (*self.ready_at.lock().unwrap_or_else(PoisonError::into_inner))?;
        let wait = until.since_ms(self.session.engine().source().now());
        if wait > MAX_READY_MS {
            let why = "its last answer said that the limit is used up".to_owned();
            return Some(Limited { until, why, told: Told::Provider("its headers"), partial: None });
        }
        if let Ok(wait) = u64::try_from(wait) {
            tokio::select! {
                () = cancel.cancelled() => {}
                () = self.timer.wait_ms(wait) => {}
            }
        }
        None
    }

    /// Keeps what an answer cost of which nothing arrived that could be said: beside the conversation, so that it counts.
    async fn count_cut(&self, answer: Answer) -> Result<()> {
        self.purse.keep_beside(&self.session, "cut", answer).await
    }

    /// Stores what came of an answer, and takes a checkpoint where none came.
    async fn keep(&self, said: &Said, whom: Whom) -> Result<()> {
        let answer = match said {
            Said::Whole(answer) | Said::Cut { answer, .. } => Some(answer),
            Said::Limited(limited) => limited.partial.as_deref(),
            Said::Failed(_) | Said::OverBudget(_) => None,
        };
        if let Some(answer) = answer.filter(|answer| !answer.message.text().is_empty()) {
            let mut message = answer.message.clone();
            if whom == Whom::Back {
                message.extra.insert("metadata".to_owned(), json!({ "type": "greeting" }));
            }
            self.purse.spend(&message);
            self.session.append_with(vec![message], &self.purse.noted()).await?;
        }
        let mark = match said {
            Said::Cut { why: ModelError::Cancelled { .. }, .. } | Said::Failed(ModelError::Cancelled { .. }) => None,
            Said::Cut { why, .. } | Said::Failed(why) => {
                Some(NewMark::new(Trigger::Error).description(why.to_string()))
            }
            Said::Limited(limited) => Some(NewMark::new(Trigger::RateLimit).description(limited.why.clone())),
            Said::Whole(_) | Said::OverBudget(_) => None,
        };
        if let Some(mark) = mark {
            self.session.checkpoint_if(mark).await;
        }
        match whom {
            Whom::Back => Ok(()),
            Whom::Person | Whom::Away(_) => self.note_what_is_open(said, whom).await,
        }
    }

    /// Notes whether the session goes on by itself, and when, before it says so.
    async fn note_what_is_open(&self, said: &Said, whom: Whom) -> Result<()> {
        let engine = self.session.engine();
        let now = engine.source().now();
        let (until, tries, leave) = match (said, whom) {
            (Said::Limited(limited), _) => {
                let what = format!("the model is at a limit until {}", limited.until);
                (Some(limited.until), 0, Leave::Waits(what))
            }
            // Whoever asked was told to stop: the next one asks.
            (Said::Failed(ModelError::Cancelled { .. }), Whom::Away(tries)) => {
                (Some(now), tries - 1, Leave::Waits("the model is asked again".to_owned()))
            }
            (Said::Failed(why), Whom::Away(tries)) if why.is_transient() && tries < WAKE_TRIES => {
                let soonest = now.plus_ms(i64::try_from(wake::again_in_ms(engine, tries)).unwrap_or(i64::MAX));
                let until = why.retry_at().map_or(soonest, |at| at.max(soonest));
                let what = format!("the model is asked again at {until}, after try {tries} of {WAKE_TRIES}: {why}");
                (Some(until), tries, Leave::Waits(what))
            }
            (Said::Failed(why), Whom::Away(tries)) => (
                None,
                0,
                Leave::PausedBecause(format!("the model gave no answer in try {tries} of {WAKE_TRIES}: {why}")),
            ),
            (Said::Cut { why, .. }, Whom::Away(_)) => (None, 0, Leave::PausedBecause(why.to_string())),
            _ => (None, 0, Leave::Paused),
        };
        wake::note_try(engine, self.session.id(), until, tries).await?;
        *self.leave.lock().unwrap_or_else(PoisonError::into_inner) = leave;
        Ok(())
    }

    /// Makes a message of what had arrived when a process ended in the middle of an answer.
    async fn mend(&self) -> Result<bool> {
        let store = self.session.engine().store();
        let from = self.last(1).await?.last().map_or(Seq(0), |stored| stored.at.seq.next());
        let after = store.entries(self.session.id(), from, Seq(u64::MAX)).await?;
        let mut parts = after.into_iter().filter_map(|entry| match entry.body {
            Some(Body::Event(event)) if event.kind == PART => event.data.get("text")?.as_str().map(str::to_owned),
            _ => None,
        });
        let Some(text) = parts.next_back().filter(|text| !text.is_empty()) else { return Ok(false) };
        let mut message = Message::new(Role::Assistant, text);
        message.extra.insert("incomplete".to_owned(), json!("the process ended in the middle of the answer"));
        self.session.append(message).await?;
        Ok(true)
    }

    /// Takes the person's last message back, with all that followed it; it stays, on the old timeline. None when there is
    /// none.
    pub async fn undo(&self) -> Result<Option<Undone>> {
        let undone = self.take_back().await?;
        if undone.is_some() {
            // What was taken back needs no answer.
            wake::forget(self.session.engine(), self.session.id()).await?;
            *self.leave.lock().unwrap_or_else(PoisonError::into_inner) = Leave::Paused;
        }
        Ok(undone)
    }

    async fn take_back(&self) -> Result<Option<Undone>> {
        let engine = self.session.engine();
        let query = MessageQuery { channel: Some(Channel::MAIN), ..MessageQuery::default() };
        let all = engine.store().messages(self.session.id(), &query).await?;
        let Some(last) = all.iter().rposition(|stored| stored.message.role == Role::User) else { return Ok(None) };
        let said = &all[last];
        let query = MarkQuery { resumable: Some(true), ..MarkQuery::default() };
        let marks = engine.store().marks(self.session.id(), &query).await?;
        let Some(before) = marks.into_iter().find(|mark| mark.at.seq < said.at.seq) else { return Ok(None) };
        let messages = all.iter().filter(|stored| stored.at.seq > before.at.seq).count();
        let mark = self.session.restore(&Point::Checkpoint(before.checkpoint.id)).await?;
        // What is taken back was paid for all the same.
        self.purse.note(&self.session).await?;
        Ok(Some(Undone { mark, said: said.message.text().into_owned(), messages }))
    }

    /// Goes on in a new session that shares everything up to here; this one is left as it is.
    pub async fn branch(self, title: Option<String>) -> Result<Self> {
        let engine = self.session.engine().clone();
        let id = self.session.id();
        let here = self.session.checkpoint(NewMark::new(Trigger::Manual).description("branched here")).await?;
        let info = self.session.info().await;
        let title = title.or_else(|| info.title.map(|title| format!("{title} (branch)")));
        let new = title.map(NewSession::titled).unwrap_or_default();
        let session = engine.branch(id, &Point::Checkpoint(here), new).await?;
        let elsewhere = self.spent();
        // A session of its own: what it shares was spent where it was written.
        let purse = Counted::of(&session).await?;
        let Self { session: old, model, dialect, max_tokens, timer, ready_at, .. } = self;
        wake::forget(&engine, id).await?;
        old.pause(Some("went on in a branch")).await?;
        old.release().await?;
        Ok(Self { max_tokens, timer, elsewhere, ready_at, ..Self::with(session, model, dialect, purse) })
    }

    /// Compacts when the next request would be over the budget. The model makes the summary; where it cannot, one is made
    /// without it.
    pub async fn compact_if_needed(&self, cancel: &Cancel) -> Result<Option<Chapter>> {
        let engine = self.session.engine();
        match engine.estimate_request_size(self.session.id()).await? > engine.budget_tokens() {
            true => self.compact(cancel).await,
            false => Ok(None),
        }
    }

    /// Compacts now; none when there is nothing to summarise.
    pub async fn compact(&self, cancel: &Cancel) -> Result<Option<Chapter>> {
        match summarise(&self.session, &Compact::default(), &*self.model, cancel, &self.purse).await {
            Ok((chapter, _)) => Ok(Some(chapter)),
            Err(milepost::Error::Refused { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Leaves: the session is free for others, and paused; or it waits, when an answer is due by itself.
    pub async fn leave(self) -> Result<()> {
        let leave = self.leave.into_inner().unwrap_or_else(PoisonError::into_inner);
        match leave {
            Leave::Waits(what) => self.session.wait(&what).await?,
            Leave::PausedBecause(why) => self.session.pause(Some(&why)).await?,
            Leave::Paused => self.session.pause(Some("left the conversation")).await?,
        };
        self.session.release().await
    }
}

/// Whoever talks in a session leaves it paused, and its wake-up is the conversation's own: a run that waits there would wait for ever.
async fn refuse_a_run(engine: &Milepost, info: &SessionInfo) -> Result<()> {
    let id = info.id;
    let is_run = match engine.store().state(id).await {
        // Then it is begun anew, without a run.
        Err(error) if error.is_damage() => false,
        state => Ledger::graph_text(&state?).is_some(),
    };
    if !is_run {
        return Ok(());
    }
    if info.status == Status::Waiting || wake::due(engine, id).await?.is_some() {
        return Err(milepost::Error::refused(
            format!("talking in session {id}"),
            "a run of a graph waits in it",
            format!("go on with it by `milepost resume {id}`, or talk on a branch: `milepost sessions branch {id}`"),
        ));
    }
    Ok(())
}

/// What a session may cost and has cost, and whether its state says so, too.
#[derive(Default)]
struct Counted {
    purse: Purse,
    is_recorded: bool,
}

impl Counted {
    async fn of(session: &Session) -> Result<Self> {
        let state = session.state().await?;
        let spent = budget::spent_by(session.engine(), session.id(), &state).await?;
        let noted = budget::recorded(&state, None);
        let is_recorded = noted.is_some() || Ledger::graph_text(&state).is_some();
        let counted = Self { purse: Purse::new(budget::recorded_budget(&state), spent), is_recorded };
        // The state says what was spent up to another moment, or by the session that this one branched from.
        if noted.is_some_and(|noted| noted.answers != spent.answers) {
            counted.note(session).await?;
        }
        Ok(counted)
    }

    fn budget(&self) -> Budget {
        self.purse.budget()
    }

    fn spent(&self) -> Spent {
        self.purse.spent()
    }

    fn empty(&self) -> Option<String> {
        self.purse.empty()
    }

    fn spend(&self, message: &Message) {
        self.purse.spend(&Spent::of([message]));
    }

    /// What the state says was spent.
    fn noted(&self) -> Vec<(StatePath, Value)> {
        let at = StatePath::root().key("execution").key("spent");
        Some((at, budget::to_value(&self.spent()))).filter(|_| self.is_recorded).into_iter().collect()
    }

    /// Notes what was spent, where the state says it.
    async fn note(&self, session: &Session) -> Result<()> {
        if self.is_recorded {
            session.set(&self.noted()).await?;
        }
        Ok(())
    }

    /// Keeps an answer that is no part of the conversation in a channel beside it, so that what it cost counts.
    async fn keep_beside(&self, session: &Session, channel: &str, answer: Answer) -> Result<()> {
        let message = answer.message.in_channel(Channel::new(channel).unwrap_or_default());
        if Spent::of([&message]).tokens() == 0 {
            return Ok(());
        }
        self.spend(&message);
        session.record(Together { messages: vec![message], set: self.noted(), ..Together::default() }).await
    }
}

/// Who wrote a summary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Author {
    /// The model.
    Model,
    /// Nobody: it was made of what was said, because the model gave none, and why.
    Extract(String),
}

/// Compacts a session with a summary that a model writes. Where it gives none that holds, or the session's budget is used up,
/// one is made without it. What the model's answer cost counts as any other answer's. Refused when there is nothing to
/// summarise.
pub async fn compact_by(
    session: &Session,
    how: &Compact,
    model: &dyn Model,
    cancel: &Cancel,
) -> Result<(Chapter, Author)> {
    summarise(session, how, model, cancel, &Counted::of(session).await?).await
}

async fn summarise(
    session: &Session,
    how: &Compact,
    model: &dyn Model,
    cancel: &Cancel,
    purse: &Counted,
) -> Result<(Chapter, Author)> {
    let planned = session.engine().plan_compaction(session.id(), how).await?;
    let (why, answer) = match purse.empty() {
        Some(why) => (why, None),
        None => {
            let request = Request::new(vec![Message::new(Role::User, planned.prompt())]);
            match model.ask(&request, cancel, &mut |_| {}).await {
                Ok(Outcome::Whole(answer)) => {
                    let text = answer.message.text().into_owned();
                    // It is paid for, whether it holds or not.
                    purse.keep_beside(session, SUMMARY, answer).await?;
                    match session.commit_compaction(&planned, &text).await {
                        Ok(chapter) => return Ok((chapter, Author::Model)),
                        Err(error) => (error.to_string(), None),
                    }
                }
                Ok(Outcome::Limited(limited)) => (limited.why, limited.partial.map(|answer| *answer)),
                Ok(Outcome::Cut { why, answer }) => (why.to_string(), Some(answer)),
                Err(why) => (why.to_string(), None),
            }
        }
    };
    if let Some(answer) = answer {
        purse.keep_beside(session, SUMMARY, answer).await?;
    }
    let chapter = session.compact(how, &Extractive::default()).await?;
    Ok((chapter, Author::Extract(why)))
}

/// The beginning of a text that may be stored before the rest is there: a secret is only known when all of it is. What
/// stands after the last space waits, and so does a key's block that has no end.
fn fit_to_keep(text: &str) -> &str {
    let end = text.rfind(char::is_whitespace).unwrap_or(0);
    let whole = text.get(..end).unwrap_or_default();
    match whole.rfind("-----BEGIN") {
        Some(begin) if !whole.get(begin..).unwrap_or_default().contains("-----END") => {
            whole.get(..begin).unwrap_or_default()
        }
        _ => whole,
    }
}

#[cfg(test)]
mod tests {
    use super::fit_to_keep;

    #[test]
    fn nothing_is_kept_that_may_be_half_a_secret() {
        for (text, kept) in [
            ("", ""),
            ("the key is sk-ant-abc", "the key is"),
            ("the key is sk-ant-abc ", "the key is sk-ant-abc"),
            ("a\n-----BEGIN PRIVATE KEY-----\nabc\nde", "a\n"),
            ("-----BEGIN X-----\nabc\n-----END X-----\nand so", "-----BEGIN X-----\nabc\n-----END X-----\nand"),
        ] {
            assert_eq!(fit_to_keep(text), kept);
        }
    }
}
