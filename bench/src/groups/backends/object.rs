//! Object stores: requests, counted on a real S3 server. Round trips one after the other are told by the time they take in
//! a bucket that answers late.

use std::sync::Arc;
use std::time::{Duration, Instant};

use milepost_model::{Message, Role, Trigger};
use milepost_store::object::object_store::memory::InMemory;
use milepost_store::object::object_store::throttle::{ThrottleConfig, ThrottledStore};
use milepost_store::object::{ObjectBackend, ObjectOptions, Requests};
use milepost_store::{
    Append, Backend, Durability, MarkQuery, NewMark, NewSession, Options, SessionQuery, SessionWriter, Store, block_on,
    system_source,
};

use super::{Place, Plan};
use crate::Result;
use crate::milepost::{Hand, Session, claim};
use crate::report::{Report, detail};
use crate::workload::{SEED, Workload};

/// How long an answer takes in the slow bucket.
const ROUND_TRIP: Duration = Duration::from_millis(100);

pub(super) fn run(plan: &Plan, place: &Place, report: &mut Report) -> Result<()> {
    block_on(async {
        writes(plan, place, report).await?;
        reads(plan, place, report).await?;
        lists(plan, place, report).await?;
        month(plan, place, report).await
    })
}

/// A process with a store in a bucket.
struct Process {
    backend: Arc<ObjectBackend>,
    store: Store,
}

impl Process {
    async fn with(backend: ObjectBackend) -> Result<Self> {
        let backend = Arc::new(backend);
        let shared: Arc<dyn Backend> = backend.clone();
        Ok(Self { backend, store: Store::with_backend(shared, Options::default()).await? })
    }

    /// On the server, under a prefix.
    async fn on(place: &Place, prefix: &str, options: ObjectOptions) -> Result<Self> {
        let url = format!("{}/bench-{}/{prefix}", place.bucket, std::process::id());
        Self::with(ObjectBackend::open(&url, options, system_source()?)?).await
    }

    fn requests(&self) -> Requests {
        self.backend.requests()
    }
}

/// `s3_puts_per_append`: conditional PUTs of a save of workload L, while the background merges nothing.
async fn writes(plan: &Plan, place: &Place, report: &mut Report) -> Result<()> {
    let mut options = ObjectOptions::default();
    options.max_steps = u64::MAX;
    let process = Process::on(place, "writes", options).await?;
    let workload = Workload::new(SEED, 0);
    let mut session = Session::begin(&process.store, &workload, Hand::Whole).await?;
    // The first state that a writer compares with is looked up; from then on it is known.
    let mut steps = workload.take(plan.steps);
    session.save(steps.next().ok_or("the workload has no step")?).await?;
    let (before, mut saves) = (process.requests(), 0);
    for step in steps {
        session.save(step).await?;
        saves += 1;
    }
    let made = process.requests().since(before);
    detail(format_args!("{saves} saves: {made:?}"));
    report.at_most("s3_puts_per_append", made.puts as f64 / f64::from(saves), 1.0);
    report.at_most("s3_other_requests_per_append", (made.gets + made.lists) as f64 / f64::from(saves), 0.0);
    Ok(())
}

/// `s3_latest_state_gets` and `s3_latest_state_round_trips`: the worst of several ages.
async fn reads(plan: &Plan, place: &Place, report: &mut Report) -> Result<()> {
    let slow = Arc::new(ThrottledStore::new(InMemory::new(), ThrottleConfig::default()));
    let on_slow = || ObjectBackend::new(slow.clone(), "", ObjectOptions::default(), system_source()?);
    let (server, late) =
        (Process::on(place, "reads", ObjectOptions::default()).await?, Process::with(on_slow()?).await?);
    let workload = Workload::new(SEED, 0);
    let mut sessions = Vec::new();
    for process in [&server, &late] {
        sessions.push(Session::begin(&process.store, &workload, Hand::Whole).await?);
    }
    let (mut gets, mut round_trips, mut age) = (0, 0.0_f64, 0);
    let mut steps = workload.take(plan.steps);
    for until in [1, plan.steps / 20, plan.steps / 7, plan.steps] {
        for step in steps.by_ref().take(until - age) {
            for (session, process) in sessions.iter_mut().zip([&server, &late]) {
                session.save(step.clone()).await?;
                process.backend.settle().await;
            }
        }
        age = until;
        let reader = Process::on(place, "reads", ObjectOptions::default()).await?;
        let before = reader.requests();
        reader.store.load_latest(sessions[0].id(), &MarkQuery::default()).await?;
        let made = reader.requests().since(before);

        let reader = Process::with(on_slow()?).await?;
        slow.config_mut(|config| {
            config.wait_get_per_call = ROUND_TRIP;
            config.wait_list_per_call = ROUND_TRIP;
        });
        let begun = Instant::now();
        reader.store.load_latest(sessions[1].id(), &MarkQuery::default()).await?;
        let trips = begun.elapsed().as_secs_f64() / ROUND_TRIP.as_secs_f64();
        slow.config_mut(|config| *config = ThrottleConfig::default());
        detail(format_args!(
            "latest state after {age} saves: {} GETs, {} LISTs, {trips:.2} round trips",
            made.gets, made.lists
        ));
        (gets, round_trips) = (gets.max(made.gets), round_trips.max(trips.floor()));
    }
    report.at_most("s3_latest_state_gets", gets as f64, 8.0);
    report.at_most("s3_latest_state_round_trips", round_trips, 2.0);
    Ok(())
}

/// `s3_list_requests`: all requests of a process that lists every session for the first time.
async fn lists(plan: &Plan, place: &Place, report: &mut Report) -> Result<()> {
    let process = Process::on(place, "lists", ObjectOptions::default()).await?;
    for _ in 0..plan.listed_sessions {
        process.store.create(NewSession::default(), &claim()).await?;
    }
    process.backend.compact().await?;
    let reader = Process::on(place, "lists", ObjectOptions::default()).await?;
    let before = reader.requests();
    let (mut query, mut found) = (SessionQuery::default(), 0);
    loop {
        let page = reader.store.sessions(&query).await?;
        found += page.sessions.len();
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    if found != plan.listed_sessions {
        return Err(format!("{found} of {} sessions were listed", plan.listed_sessions).into());
    }
    let made = reader.requests().since(before);
    detail(format_args!("{found} sessions: {made:?}"));
    report.at_most("s3_list_requests", made.paid() as f64, 20.0);
    Ok(())
}

async fn say(writer: &SessionWriter, text: String) -> Result<()> {
    writer.append(Append::new().message(Message::new(Role::User, text))).await?;
    Ok(())
}

/// `s3_month_dollars`: requests of 1,000 sessions of 100 messages, each appended for itself, with a checkpoint per turn of 20,
/// by S3's prices. Leases, merges and the index are counted.
async fn month(plan: &Plan, place: &Place, report: &mut Report) -> Result<()> {
    let mut options = ObjectOptions::default();
    options.durability = Durability::Turn;
    let process = Process::on(place, "month", options).await?;
    let before = process.requests();
    for _ in 0..plan.month_sessions {
        let writer = process.store.create(NewSession::default(), &claim()).await?;
        for turn in 0..5 {
            for number in 0..19 {
                say(&writer, format!("turn {turn}, message {number}")).await?;
            }
            let last = Message::new(Role::Assistant, format!("turn {turn} is done"));
            writer.append(Append::new().message(last).mark(NewMark::new(Trigger::Step))).await?;
        }
        writer.release().await?;
    }
    process.backend.settle().await;
    process.backend.compact().await?;
    let made = process.requests().since(before);
    detail(format_args!("{} sessions of 100 messages: {made:?}", plan.month_sessions));
    report.at_most("s3_month_dollars", made.dollars() * 1000.0 / plan.month_sessions as f64, 0.05);
    Ok(())
}
