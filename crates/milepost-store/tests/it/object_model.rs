//! The object store's protocol (`docs/object-protocol.md`), checked in every order of events: two writers, a takeover,
//! merges into segments that take in older ones, deletions, a reader, lost answers, retried PUTs, crashes, and a clock that
//! runs on at any moment. Each rule of the
//! protocol is also left out once, and the checker must find what breaks.

use stateright::{Checker, HasDiscoveries, Model, Property};

/// Time that a writer trusts what it knows.
const T: u8 = 1;
/// Time that deletion waits.
const D: u8 = 2;

/// How much is tried. The short form is enough for every flaw below to show; `MILEPOST_LONG=1` tries far more orders.
struct Size {
    last_tick: u8,
    max_merges: usize,
    second_todo: Vec<u8>,
    has_reader: bool,
}

impl Size {
    fn is_long() -> bool {
        std::env::var_os("MILEPOST_LONG").is_some()
    }

    /// Two writers that want the same session.
    fn writers() -> Self {
        match Self::is_long() {
            true => Self { last_tick: 4, max_merges: 2, second_todo: vec![20, 21], has_reader: false },
            false => Self { last_tick: 3, max_merges: 1, second_todo: vec![20], has_reader: false },
        }
    }

    /// One writer, and someone who reads while segments come and go.
    fn segments() -> Self {
        let max_merges = if Self::is_long() { 3 } else { 2 };
        Self { last_tick: 4, max_merges, second_todo: Vec::new(), has_reader: true }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// An idle writer acknowledges without a look at the sealed boundary.
    BoundaryIgnored,
    /// Merged steps are deleted at once.
    DeletedAtOnce,
    /// "Already exists" is taken for defeat, though it may be one's own earlier try.
    ExistsIsDefeat,
    /// Whoever loses a number does not look who won it.
    FenceIgnored,
    /// A segment that others stand in for is deleted at once.
    SegmentDeletedAtOnce,
    /// A segment is deleted because a newer one is there, whether that has its steps or not.
    SegmentNotCovered,
}

/// Steps that were sealed: from the first number to the last, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Segment {
    first: usize,
    last: usize,
    sealed: u8,
}

/// Segments (first and last number) and steps that hold a log.
type Cover = (Vec<(usize, usize)>, Vec<usize>);

/// Someone who has listed the log, and is about to read what it chose.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Reader {
    Fresh,
    Listed { time: u8, segments: Vec<(usize, usize)>, steps: Vec<usize> },
    Done { is_whole: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Step {
    put: u8,
    epoch: u8,
    /// What it adds; none for a fence.
    value: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    /// A PUT was sent; it may be executed again and again until its answer arrives.
    Sent {
        number: usize,
        step: Step,
    },
    /// It was answered with "already exists".
    Refused {
        number: usize,
        step: Step,
    },
    Stopped,
    Crashed {
        number: usize,
        step: Step,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Writer {
    epoch: u8,
    phase: Phase,
    known: Vec<Step>,
    fresh: u8,
    /// What is still to be added.
    todo: Vec<u8>,
    puts: u8,
    lost_answers: u8,
    acknowledged: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    clock: u8,
    /// The log as everyone who reads it all sees it.
    log: Vec<Step>,
    /// What lies under each number.
    objects: Vec<Option<Step>>,
    segments: Vec<Segment>,
    /// How many merges there were.
    merges: usize,
    reader: Reader,
    writers: Vec<Writer>,
    void_puts: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Tick,
    Merge(usize, usize),
    Delete(usize),
    DeleteSegment(usize),
    List,
    Read,
    Send(usize),
    Answered(usize),
    AnswerLost(usize),
    ReadWinner(usize),
    Crash(usize),
    LatePut(usize),
}

struct Protocol(Flaw, Size);

impl World {
    fn boundary(&self) -> Option<usize> {
        self.segments.iter().map(|segment| segment.last).max()
    }

    /// The segments that reach furthest, and the steps after them; none when something is missing.
    fn cover(&self) -> Option<Cover> {
        let (mut chosen, mut end) = (Vec::new(), 0);
        let goes_on = |segment: &&Segment, end: usize| segment.first <= end && segment.last >= end;
        while let Some(next) = self.segments.iter().filter(|s| goes_on(s, end)).max_by_key(|segment| segment.last) {
            chosen.push((next.first, next.last));
            end = next.last + 1;
        }
        let steps: Vec<usize> = (end..self.log.len()).collect();
        steps.iter().all(|number| self.objects[*number].is_some()).then_some((chosen, steps))
    }

    /// Executes a conditional PUT. True when it was taken.
    fn put(&mut self, number: usize, step: Step) -> bool {
        if self.objects.len() <= number {
            self.objects.resize(number + 1, None);
        }
        if self.objects[number].is_some() {
            return false;
        }
        self.objects[number] = Some(step);
        if number == self.log.len() {
            self.log.push(step);
        } else {
            self.void_puts += 1;
        }
        true
    }

    /// What a reader finds who knows a part already: the steps after it, or, idle for too long, base and steps.
    fn refresh(&mut self, who: usize, flaw: Flaw) {
        let clock = self.clock;
        let writer = &mut self.writers[who];
        if clock - writer.fresh <= T || flaw == Flaw::BoundaryIgnored {
            while let Some(Some(step)) = self.objects.get(writer.known.len()) {
                writer.known.push(*step);
            }
        } else {
            writer.known.clone_from(&self.log);
        }
        writer.fresh = clock;
        let newest = writer.known.iter().map(|step| step.epoch).max().unwrap_or(0);
        writer.phase = Phase::Idle;
        if newest > writer.epoch && flaw != Flaw::FenceIgnored {
            writer.phase = Phase::Stopped;
        }
        // A batch that is there already gets its first answer.
        if let Some(value) = writer.todo.first().copied().filter(|_| flaw != Flaw::ExistsIsDefeat)
            && writer.known.iter().any(|step| step.value == Some(value))
        {
            writer.todo.remove(0);
            writer.acknowledged.push(value);
        }
    }

    /// A PUT is known to have been taken.
    fn taken(&mut self, who: usize, number: usize, step: Step, flaw: Flaw) {
        let idle = self.clock - self.writers[who].fresh > T;
        let is_void = self.boundary().is_some_and(|boundary| boundary >= number);
        if idle && is_void && flaw != Flaw::BoundaryIgnored {
            return self.refresh(who, flaw);
        }
        let clock = self.clock;
        let writer = &mut self.writers[who];
        writer.known.push(step);
        writer.fresh = clock;
        writer.phase = Phase::Idle;
        if let Some(value) = step.value {
            writer.todo.retain(|todo| *todo != value);
            writer.acknowledged.push(value);
        }
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        let opening = Step { put: 0, epoch: 1, value: Some(0) };
        let writer = |epoch, todo| Writer {
            epoch,
            phase: Phase::Idle,
            known: vec![opening],
            fresh: 0,
            todo,
            puts: 0,
            lost_answers: 0,
            acknowledged: Vec::new(),
        };
        vec![World {
            clock: 0,
            log: vec![opening],
            objects: vec![Some(opening)],
            segments: Vec::new(),
            merges: 0,
            reader: Reader::Fresh,
            writers: vec![writer(1, vec![10, 11]), writer(2, self.1.second_todo.clone())],
            void_puts: 0,
        }]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        if world.clock < self.1.last_tick {
            events.push(Event::Tick);
        }
        if world.merges < self.1.max_merges {
            let end = world.boundary().map_or(0, |boundary| boundary + 1);
            // A segment has the steps after the last one, or those of the last one too.
            let firsts = [Some(end), world.segments.last().map(|segment| segment.first)];
            for first in firsts.into_iter().flatten() {
                events.extend((end.max(1)..world.log.len()).map(|last| Event::Merge(first, last)));
            }
        }
        let has_waited = |sealed: u8, flaw: Flaw| self.0 == flaw || world.clock - sealed > D;
        for (at, old) in world.segments.iter().enumerate() {
            let stands_in = |new: &Segment| {
                let is_newer = new.last > old.last;
                let has_all = new.first <= old.first || self.0 == Flaw::SegmentNotCovered;
                is_newer && has_all && has_waited(new.sealed, Flaw::SegmentDeletedAtOnce)
            };
            if world.segments.iter().any(stands_in) {
                events.push(Event::DeleteSegment(at));
            }
        }
        match world.reader {
            Reader::Fresh if self.1.has_reader => events.push(Event::List),
            Reader::Listed { .. } => events.push(Event::Read),
            Reader::Fresh | Reader::Done { .. } => {}
        }
        for number in 1..world.objects.len() {
            let is_due = |segment: &Segment| {
                (segment.first..=segment.last).contains(&number) && has_waited(segment.sealed, Flaw::DeletedAtOnce)
            };
            if world.objects[number].is_some() && world.segments.iter().any(is_due) {
                events.push(Event::Delete(number));
            }
        }
        for (who, writer) in world.writers.iter().enumerate() {
            match writer.phase {
                Phase::Idle if !writer.todo.is_empty() => events.push(Event::Send(who)),
                Phase::Sent { .. } => {
                    events.extend([Event::Answered(who), Event::Crash(who)]);
                    if writer.lost_answers == 0 {
                        events.push(Event::AnswerLost(who));
                    }
                }
                Phase::Refused { .. } => events.push(Event::ReadWinner(who)),
                Phase::Crashed { .. } => events.push(Event::LatePut(who)),
                Phase::Idle | Phase::Stopped => {}
            }
        }
    }

    fn next_state(&self, before: &World, event: Event) -> Option<World> {
        let mut world = before.clone();
        match event {
            Event::Tick => world.clock += 1,
            Event::Merge(first, last) => {
                world.merges += 1;
                world.segments.push(Segment { first, last, sealed: world.clock });
            }
            Event::Delete(number) => world.objects[number] = None,
            Event::DeleteSegment(at) => drop(world.segments.remove(at)),
            Event::List => {
                world.reader = match world.cover() {
                    Some((segments, steps)) => Reader::Listed { time: world.clock, segments, steps },
                    None => Reader::Done { is_whole: false },
                };
            }
            Event::Read => {
                let Reader::Listed { time, segments, steps } = &world.reader else { return None };
                let is_there = |(first, last): &(usize, usize)| {
                    world.segments.iter().any(|segment| (segment.first, segment.last) == (*first, *last))
                };
                let is_whole = segments.iter().all(is_there) && steps.iter().all(|step| world.objects[*step].is_some());
                // Whoever took too long lists again.
                world.reader = Reader::Done { is_whole: is_whole || world.clock - time > T };
            }
            Event::Send(who) => {
                let has_lease = world.writers[who].known.iter().any(|step| step.epoch == world.writers[who].epoch);
                let writer = &mut world.writers[who];
                writer.puts += 1;
                // A takeover begins with a fence.
                let value = if has_lease { writer.todo.first().copied() } else { None };
                let put = (who as u8 + 1) * 16 + writer.puts;
                let step = Step { put, epoch: writer.epoch, value };
                writer.phase = Phase::Sent { number: writer.known.len(), step };
            }
            Event::Answered(who) => {
                let Phase::Sent { number, step } = world.writers[who].phase else { return None };
                match world.put(number, step) {
                    true => world.taken(who, number, step, self.0),
                    false => world.writers[who].phase = Phase::Refused { number, step },
                }
            }
            Event::AnswerLost(who) => {
                let Phase::Sent { number, step } = world.writers[who].phase else { return None };
                world.put(number, step);
                world.writers[who].lost_answers += 1;
            }
            Event::ReadWinner(who) => {
                let Phase::Refused { number, step } = world.writers[who].phase else { return None };
                let winner = world.objects[number];
                match winner {
                    Some(winner) if winner.put == step.put && self.0 != Flaw::ExistsIsDefeat => {
                        world.taken(who, number, step, self.0);
                    }
                    _ => world.refresh(who, self.0),
                }
            }
            Event::Crash(who) => {
                let Phase::Sent { number, step } = world.writers[who].phase else { return None };
                world.writers[who].phase = Phase::Crashed { number, step };
            }
            Event::LatePut(who) => {
                let Phase::Crashed { number, step } = world.writers[who].phase else { return None };
                world.put(number, step);
                world.writers[who].phase = Phase::Stopped;
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("what was acknowledged is in the log", |_, world: &World| {
                let mut told = world.writers.iter().flat_map(|writer| &writer.acknowledged);
                told.all(|value| world.log.iter().any(|step| step.value == Some(*value)))
            }),
            Property::always("nothing is in the log twice", |_, world: &World| {
                let values: Vec<u8> = world.log.iter().filter_map(|step| step.value).collect();
                (1..values.len()).all(|at| !values[..at].contains(&values[at]))
            }),
            Property::always("nothing of an older epoch follows a fence", |_, world: &World| {
                world.log.windows(2).all(|pair| pair[0].epoch <= pair[1].epoch)
            }),
            Property::always("what a writer believes is the log", |_, world: &World| {
                world.writers.iter().all(|writer| world.log.starts_with(&writer.known))
            }),
            Property::always("the bucket holds the whole log", |_, world: &World| world.cover().is_some()),
            Property::always("whoever reads at once finds what was listed", |_, world: &World| {
                world.reader != Reader::Done { is_whole: false }
            }),
            Property::sometimes("a segment is taken in, and goes", |_, world: &World| {
                world.merges == 2 && world.segments.len() == 1
            }),
            Property::sometimes("both writers get through", |_, world: &World| {
                world.writers.iter().all(|writer| !writer.acknowledged.is_empty())
            }),
            Property::sometimes("a writer is fenced", |_, world: &World| {
                world.writers[0].phase == Phase::Stopped && world.writers[0].epoch == 1
            }),
            Property::sometimes("a number is void", |_, world: &World| world.void_puts > 0),
        ]
    }
}

fn is_always(checker: &impl Checker<Protocol>, name: &'static str) -> bool {
    checker.model().property(name).expectation == stateright::Expectation::Always
}

#[test]
fn the_protocol_holds_in_every_order_of_events() {
    for (size, reached) in [
        (Size::writers(), &["both writers get through", "a writer is fenced", "a number is void"][..]),
        (Size::segments(), &["a segment is taken in, and goes"][..]),
    ] {
        let checker = Protocol(Flaw::None, size).checker().threads(2).spawn_bfs().join();
        println!("{} states", checker.unique_state_count());
        let found: Vec<&str> = checker.discoveries().into_keys().collect();
        let broken: Vec<&&str> = found.iter().filter(|name| is_always(&checker, name)).collect();
        assert!(broken.is_empty(), "{broken:?}");
        assert!(reached.iter().all(|name| found.contains(name)), "not all of {reached:?} happened: {found:?}");
    }
}

#[test]
fn the_checker_finds_what_each_rule_is_for() {
    let flaws = [
        (Flaw::BoundaryIgnored, Size::writers as fn() -> Size),
        (Flaw::DeletedAtOnce, Size::writers),
        (Flaw::ExistsIsDefeat, Size::writers),
        (Flaw::FenceIgnored, Size::writers),
        (Flaw::SegmentDeletedAtOnce, Size::segments),
        (Flaw::SegmentNotCovered, Size::segments),
    ];
    for (flaw, size) in flaws {
        let checker = Protocol(flaw, size()).checker().finish_when(HasDiscoveries::AnyFailures);
        let checker = checker.threads(2).spawn_bfs().join();
        let found: Vec<&str> = checker.discoveries().into_keys().filter(|name| is_always(&checker, name)).collect();
        println!("{flaw:?}: {found:?}");
        assert!(!found.is_empty(), "{flaw:?} breaks nothing");
    }
}
