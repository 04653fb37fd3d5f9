//! Three processes on one store, at one session at a time: what each was told is put in one order by a checker. There must
//! be an order that agrees with real time, in which a session is a log that only its newest holder adds to.
//!
//! [`three_processes`] is a function of the store's URL: any backend that processes can share may be asked.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use milepost_model::SessionId;
use milepost_store::{Append, Claim, Error, MessageQuery, NewSession, Options, Store};
use serde::{Deserialize, Serialize};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

use crate::child::{Job, Voice, What, command, runtime, say};
use crate::harness::Rng;
use crate::support::{Scratch, user};

const PROCESSES: usize = 3;
/// What each process does with a session: few enough for the checker to try every order.
const CALLS: usize = 16;
/// Messages of one append. Nobody else's may lie between them.
const TOGETHER: usize = 3;

/// What one process is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Part {
    url: String,
    process: usize,
    sessions: Vec<SessionId>,
    /// When to begin with the first, in nanoseconds of the machine's clock; each of the others a moment later.
    begin: u64,
}

/// The pause between one session and the next: those who are fast wait for the others.
const MOMENT: Duration = Duration::from_millis(300);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Call {
    /// Takes the session from whoever has it. The number is this holding's.
    Seize(u64),
    /// Appends under a holding.
    Append { holding: u64, id: u64 },
    /// Reads everything.
    Read,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Answer {
    Seized,
    Appended,
    Fenced,
    /// The appends that are there.
    Read(Vec<u64>),
}

/// One line of a child: when it called or was answered.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    time: u64,
    session: usize,
    process: usize,
    what: Event,
}

#[derive(Debug, Serialize, Deserialize)]
enum Event {
    Call(Call),
    Answer(Answer),
}

/// What a session is, when only one call is made at a time.
#[derive(Debug, Clone, Default)]
struct Log {
    holding: u64,
    appended: Vec<u64>,
}

impl SequentialSpec for Log {
    type Op = Call;
    type Ret = Answer;

    fn invoke(&mut self, call: &Call) -> Answer {
        match call {
            Call::Seize(holding) => {
                self.holding = *holding;
                Answer::Seized
            }
            Call::Append { holding, .. } if *holding != self.holding => Answer::Fenced,
            Call::Append { id, .. } => {
                self.appended.push(*id);
                Answer::Appended
            }
            Call::Read => Answer::Read(self.appended.clone()),
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// The appends of a session, in order. Their messages must lie together.
async fn read(store: &Store, session: SessionId) -> Vec<u64> {
    let found = store.messages(session, &MessageQuery::default()).await.unwrap();
    let texts: Vec<String> = found.iter().map(|found| found.message.text().into_owned()).collect();
    assert_eq!(texts.len() % TOGETHER, 0, "half an append was read: {texts:?}");
    let together = texts.chunks(TOGETHER).map(|texts| {
        let id = texts[0].split(' ').next().unwrap();
        for (place, text) in texts.iter().enumerate() {
            assert_eq!(*text, format!("{id} {place}"), "appends interleave");
        }
        id.parse().unwrap()
    });
    together.collect()
}

/// What a child does.
pub async fn take_part(job: &Job, part: &Part) {
    let store = Store::open(&part.url, Options::default()).await.unwrap();
    let mut rng = Rng::new(job.seed);
    let name = format!("process {}", part.process);
    let mut number = part.process as u64;
    for (session, id) in part.sessions.iter().enumerate() {
        let tell = |time: u64, what: Event| {
            let told = Told { time, session, process: part.process, what };
            say(&format!("told {}", serde_json::to_string(&told).unwrap()));
        };
        let begin = Duration::from_nanos(part.begin) + MOMENT * session as u32;
        tokio::time::sleep(begin.saturating_sub(Duration::from_nanos(now()))).await;
        let mut held = None;
        for _ in 0..CALLS {
            number += PROCESSES as u64;
            let call = match (&held, rng.below(8)) {
                (_, 0 | 1) => Call::Read,
                (Some((_, holding)), 2..) if !rng.chance(1) => Call::Append { holding: *holding, id: number },
                _ => Call::Seize(number),
            };
            tell(now(), Event::Call(call.clone()));
            let answer = match &call {
                Call::Read => Answer::Read(read(&store, *id).await),
                Call::Seize(holding) => {
                    match store.write(*id, &Claim::new(&name).take_over()).await {
                        Ok(writer) => held = Some((writer, *holding)),
                        // It had the session, and lost it before it could look at it.
                        Err(Error::Fenced { .. }) => held = None,
                        Err(error) => panic!("{error}"),
                    }
                    Answer::Seized
                }
                Call::Append { id, .. } => {
                    let append = (0..TOGETHER)
                        .fold(Append::new(), |append, place| append.message(user(&format!("{id} {place}"))));
                    match held.as_ref().unwrap().0.append(append).await {
                        Ok(_) => Answer::Appended,
                        Err(Error::Fenced { .. }) => Answer::Fenced,
                        Err(error) => panic!("{error}"),
                    }
                }
            };
            tell(now(), Event::Answer(answer));
        }
    }
    store.close().await.unwrap();
}

/// What the children told, one history for each session.
type Histories = BTreeMap<usize, Vec<Told>>;

/// Whether there is an order of a history's calls that a log allows.
fn is_linearizable(history: &[Told]) -> bool {
    let mut tester = LinearizabilityTester::new(Log::default());
    for told in history {
        match &told.what {
            Event::Call(call) => drop(tester.on_invoke(told.process, call.clone()).unwrap()),
            Event::Answer(answer) => drop(tester.on_return(told.process, answer.clone()).unwrap()),
        }
    }
    tester.is_consistent()
}

fn run(url: &str, sessions: Vec<SessionId>) -> Histories {
    let begin = now() + Duration::from_secs(1).as_nanos() as u64;
    let child = |process: usize| {
        let part = Part { url: url.to_owned(), process, sessions: sessions.clone(), begin };
        let job = Job { store: "unused".into(), seed: 7 + process as u64, what: What::TakePart(part) };
        Voice::of(command(&job).spawn().unwrap())
    };
    let mut children: Vec<Voice> = (0..PROCESSES).map(child).collect();
    let mut histories = Histories::new();
    for child in &mut children {
        for line in child.finish() {
            if let Some(told) = line.strip_prefix("told ") {
                let told: Told = serde_json::from_str(told).unwrap();
                histories.entry(told.session).or_default().push(told);
            }
        }
    }
    for history in histories.values_mut() {
        // Calls before answers of the same time: that leaves more orders open, never fewer.
        history.sort_by_key(|told| (told.time, matches!(told.what, Event::Answer(_))));
    }
    histories
}

/// Three processes seize, append to and read the sessions of the store at `url`; what they were told must be linearizable.
pub fn three_processes(url: &str) {
    let count = if std::env::var_os("MILEPOST_LONG").is_some() { 200 } else { 20 };
    let sessions = runtime().block_on(async {
        let store = Store::open(url, Options::default()).await.unwrap();
        let mut sessions = Vec::new();
        for _ in 0..count {
            let writer = store.create(NewSession::default(), &Claim::new("the test")).await.unwrap();
            sessions.push(writer.id());
            writer.release().await.unwrap();
        }
        store.close().await.unwrap();
        sessions
    });
    let mut histories = run(url, sessions.clone());
    assert_eq!(histories.len(), count);
    runtime().block_on(async {
        let store = Store::open(url, Options::default()).await.unwrap();
        // What is there in the end is part of every history: all that was acknowledged.
        for (session, history) in &mut histories {
            let told = |what| Told { time: now(), session: *session, process: PROCESSES, what };
            history.push(told(Event::Call(Call::Read)));
            history.push(told(Event::Answer(Answer::Read(read(&store, sessions[*session]).await))));
        }
        let verified = store.verify().await.unwrap();
        assert!(verified.is_whole(), "{:?}", verified.problems);
        store.close().await.unwrap();
    });
    let (mut fenced, mut appended) = (0, 0);
    for (session, history) in &histories {
        assert!(is_linearizable(history), "session {}: no order explains {history:#?}", sessions[*session]);
        let answers = |wanted: fn(&Answer) -> bool| {
            history.iter().filter(|told| matches!(&told.what, Event::Answer(answer) if wanted(answer))).count()
        };
        fenced += answers(|answer| *answer == Answer::Fenced);
        appended += answers(|answer| *answer == Answer::Appended);
    }
    assert!(fenced > count && appended > count, "{fenced} were fenced and {appended} appended: there was no race");
}

#[test]
fn three_processes_on_one_file_are_linearizable() {
    three_processes(&Scratch::new().url());
}

/// The checker finds what it is there for.
#[test]
fn an_append_by_an_old_holder_is_not_linearizable() {
    let told = |time: u64, process: usize, what: Event| Told { time, session: 0, process, what };
    let (seize, append) = (Call::Seize, |holding| Event::Call(Call::Append { holding, id: 1 }));
    let history = |answer: Answer| {
        vec![
            told(1, 0, Event::Call(seize(1))),
            told(2, 0, Event::Answer(Answer::Seized)),
            told(3, 1, Event::Call(seize(2))),
            told(4, 1, Event::Answer(Answer::Seized)),
            told(5, 0, append(1)),
            told(6, 0, Event::Answer(answer)),
        ]
    };
    assert!(is_linearizable(&history(Answer::Fenced)));
    assert!(!is_linearizable(&history(Answer::Appended)));
}
