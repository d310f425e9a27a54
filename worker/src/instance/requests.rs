//! The requests of one instance: those that its runtime asks for, has, and has taken too long for.
//!
//! A runtime that serves one at a time asks, answers, and asks again. One that serves several asks on several
//! connections; some ask again before they have answered.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use super::Misuse;
use super::timers::Timer;
use crate::invocation::id::InvocationId;
use crate::invocation::request::Invocation;
use worker_pool::RequestId;

/// What the runtime does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// It has not asked for work yet.
    #[default]
    Init,
    /// It has asked.
    Serving,
    /// It is being ended.
    Ended,
}

/// A connection on which the runtime waits for a request.
struct Ask {
    sender: oneshot::Sender<Arc<Invocation>>,
    /// When who asks wants to do idle work.
    idle_work: Vec<Instant>,
    /// The process that asks, where the runtime says it.
    process: Option<u32>,
}

/// A request that the runtime has.
pub(super) struct Work {
    pub request: RequestId,
    pub invocation: Arc<Invocation>,
    pub since: Instant,
    pub timer: Timer,
    /// The answer is being received: no other request may send one.
    pub answering: bool,
    /// The process that has it, where the runtime says it.
    pub process: Option<u32>,
}

/// The result of a request for work.
pub(super) struct Asked {
    pub receiver: oneshot::Receiver<Arc<Invocation>>,
    pub is_first: bool,
    /// It takes the place of one whose connection broke, and which the pool still counts on.
    pub is_again: bool,
    /// The timer of the request that was answered before.
    pub timer: Option<Timer>,
}

/// What to do about a request whose time has passed.
pub(super) enum Overdue {
    /// Nothing: it was answered, and the runtime asks for more.
    No,
    /// The caller receives the reason, and the instance goes on with its other requests.
    Request(Work),
    /// The same, and the instance is to end.
    Last(Option<Work>),
}

#[derive(Default)]
pub(super) struct Requests {
    at_once: usize,
    pub stage: Stage,
    asks: VecDeque<Ask>,
    /// By the ids that callers have.
    running: BTreeMap<InvocationId, Work>,
    /// Their callers know that they took too long; the runtime still works on them, in these processes.
    overdue: BTreeMap<InvocationId, Option<u32>>,
    /// The timer of the latest answer: it ends the instance if the runtime asks for nothing more.
    answered: Option<Timer>,
}

impl Requests {
    pub fn new(at_once: u32) -> Requests {
        Requests { at_once: at_once as usize, ..Requests::default() }
    }

    fn is_single(&self) -> bool {
        self.at_once == 1
    }

    /// The runtime, or this process of it, asks for work.
    pub fn ask(&mut self, idle_work: Vec<Instant>, process: Option<u32>) -> Result<Asked, Misuse> {
        let (sender, receiver) = oneshot::channel();
        let ask = Ask { sender, idle_work, process };
        let (is_first, mut is_again) = (self.stage == Stage::Init, false);
        match self.stage {
            Stage::Ended => return Err(Misuse::State),
            Stage::Init => self.stage = Stage::Serving,
            Stage::Serving => {
                if let Some(broken) = self.asks.iter_mut().find(|ask| ask.sender.is_closed()) {
                    *broken = ask;
                    is_again = true;
                    return Ok(Asked { receiver, is_first, is_again, timer: None });
                }
                if self.is_single() && !(self.asks.is_empty() && self.running.is_empty()) {
                    return Err(Misuse::State);
                }
            }
        }
        self.asks.push_back(ask);
        Ok(Asked { receiver, is_first, is_again, timer: self.answered.take() })
    }

    /// Gives the runtime a request. False if it cannot have received it.
    pub fn give(&mut self, invocation: Arc<Invocation>, work: impl FnOnce(Arc<Invocation>) -> Work) -> bool {
        if self.stage != Stage::Serving {
            return false;
        }
        while let Some(ask) = self.asks.pop_front() {
            if ask.sender.send(invocation.clone()).is_ok() {
                let work = Work { process: ask.process, ..work(invocation.clone()) };
                self.running.insert(invocation.id, work);
                return true;
            }
        }
        if self.is_single() {
            self.stage = Stage::Ended;
        }
        false
    }

    /// Why an id is refused that none of its requests has.
    pub fn no_such(&self) -> Misuse {
        if self.running.is_empty() { Misuse::State } else { Misuse::RequestId }
    }

    /// The request of this id.
    pub fn of(&mut self, id: InvocationId) -> Result<&mut Work, Misuse> {
        let none = self.no_such();
        match self.overdue.contains_key(&id) {
            true => Err(Misuse::Overdue),
            false => self.running.get_mut(&id).ok_or(none),
        }
    }

    /// It has an answer, or ended without.
    pub fn finish(&mut self, id: InvocationId) -> Result<Work, Misuse> {
        self.of(id)?;
        let work = self.running.remove(&id).expect("found a line above");
        if let Some(earlier) = self.answered.replace(work.timer.clone()) {
            earlier.abort();
        }
        Ok(work)
    }

    /// The runtime is done with a request that took too long, and whose caller knows that.
    pub fn finish_overdue(&mut self, id: InvocationId) -> bool {
        self.overdue.remove(&id).is_some()
    }

    /// This process of the runtime has ended. Returns the request that it had, if its caller still waits.
    pub fn process_ended(&mut self, process: u32) -> Option<InvocationId> {
        for ask in self.asks.iter_mut().filter(|ask| ask.process == Some(process)) {
            // Its connection is closed, which the worker may notice later. The next process takes its place.
            ask.sender = oneshot::channel().0;
        }
        self.overdue.retain(|_, of| *of != Some(process));
        let found = self.running.iter().find(|(_, work)| work.process == Some(process));
        found.map(|(id, _)| *id)
    }

    /// The time of this request has passed; `extension_works` if that may be an extension's doing.
    pub fn out_of_time(&mut self, request: RequestId, extension_works: bool) -> Overdue {
        let found = self.running.iter().find(|(_, work)| work.request == request);
        let id = found.map(|(id, _)| *id);
        if self.is_single() {
            let waits = !self.asks.is_empty();
            // It may have gone on to another request just now.
            if self.stage != Stage::Serving
                || (id.is_none() && !self.running.is_empty())
                || (waits && !extension_works)
            {
                return Overdue::No;
            }
            self.stage = Stage::Ended;
            return Overdue::Last(id.and_then(|id| self.running.remove(&id)));
        }
        let work = id.and_then(|id| self.running.remove(&id));
        self.overdue.extend(id.zip(work.as_ref().map(|work| work.process)));
        // As many as it may have at once are overdue, or all that it has: nothing in it may ever ask again.
        let is_last = self.overdue.len() >= self.at_once || (self.asks.is_empty() && self.running.is_empty());
        match work {
            _ if self.stage != Stage::Serving => Overdue::No,
            work if is_last => Overdue::Last(work),
            Some(work) => Overdue::Request(work),
            None => Overdue::No,
        }
    }

    /// Whether its runtime has nothing to do.
    pub fn is_idle(&self) -> bool {
        let waits = self.stage == Stage::Serving && !self.asks.is_empty();
        waits && self.running.is_empty() && self.overdue.is_empty()
    }

    /// When those that wait for work want to do idle work, the earliest first.
    pub fn idle_work(&self) -> Vec<Instant> {
        let mut all: Vec<Instant> = self.asks.iter().flat_map(|ask| ask.idle_work.clone()).collect();
        all.sort_unstable();
        all
    }

    /// It is being ended: returns its stage until now, and what it had.
    pub fn end(&mut self) -> (Stage, Vec<Work>) {
        if let Some(timer) = self.answered.take() {
            timer.abort();
        }
        self.asks.clear();
        let running = std::mem::take(&mut self.running).into_values().collect();
        (std::mem::replace(&mut self.stage, Stage::Ended), running)
    }

    /// The ids of what it has.
    pub fn ids(&self) -> Vec<InvocationId> {
        self.running.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn give(requests: &mut Requests, request: RequestId) -> Option<InvocationId> {
        let invocation = Arc::new(Invocation::new(String::new(), Bytes::new(), None, None));
        let id = invocation.id;
        let timer = Timer::default();
        let work = |invocation| Work {
            request,
            invocation,
            since: Instant::now(),
            timer,
            answering: false,
            process: None,
        };
        requests.give(invocation, work).then_some(id)
    }

    fn ask(requests: &mut Requests) -> Result<Asked, Misuse> {
        requests.ask(Vec::new(), None)
    }

    #[tokio::test]
    async fn one_at_a_time_asks_only_after_its_answer() {
        let mut requests = Requests::new(1);
        let asked = ask(&mut requests).unwrap();
        assert!(asked.is_first && !asked.is_again && requests.is_idle());
        assert_eq!(ask(&mut requests).err(), Some(Misuse::State), "it waits already");
        let id = give(&mut requests, RequestId(1)).unwrap();
        assert_eq!(ask(&mut requests).err(), Some(Misuse::State), "it has not answered");
        assert_eq!(requests.finish(InvocationId::random()).err(), Some(Misuse::RequestId));
        assert_eq!(requests.finish(id).unwrap().request, RequestId(1));
        assert_eq!(requests.finish(id).err(), Some(Misuse::State));
        assert!(ask(&mut requests).unwrap().timer.is_some());
        drop(asked);
    }

    #[tokio::test]
    async fn several_at_once_are_answered_in_any_order() {
        let mut requests = Requests::new(2);
        let asked = [ask(&mut requests).unwrap(), ask(&mut requests).unwrap()];
        assert!(asked[0].is_first && !asked[1].is_first);
        let ids = [give(&mut requests, RequestId(1)).unwrap(), give(&mut requests, RequestId(2)).unwrap()];
        assert_eq!(give(&mut requests, RequestId(3)), None, "nothing asks for it");
        assert!(!requests.is_idle());
        assert_eq!(requests.finish(ids[1]).unwrap().request, RequestId(2));
        assert_eq!(requests.finish(ids[1]).err(), Some(Misuse::RequestId), "answered already");
        assert_eq!(requests.finish(ids[0]).unwrap().request, RequestId(1));
        drop(asked);
    }

    #[tokio::test]
    async fn an_overdue_request_leaves_the_others_alone() {
        let mut requests = Requests::new(2);
        let asked = [ask(&mut requests).unwrap(), ask(&mut requests).unwrap()];
        let ids = [give(&mut requests, RequestId(1)).unwrap(), give(&mut requests, RequestId(2)).unwrap()];
        let Overdue::Request(work) = requests.out_of_time(RequestId(1), false) else {
            panic!("the other goes on")
        };
        assert_eq!(work.request, RequestId(1));
        assert_eq!(requests.finish(ids[0]).err(), Some(Misuse::Overdue));
        assert!(requests.finish_overdue(ids[0]) && !requests.finish_overdue(ids[0]));
        let Overdue::Last(Some(_)) = requests.out_of_time(RequestId(2), false) else {
            panic!("nothing is left in it")
        };
        drop(asked);
    }

    #[tokio::test]
    async fn a_broken_connection_gives_its_place_to_the_next() {
        let mut requests = Requests::new(2);
        drop(ask(&mut requests).unwrap());
        assert!(ask(&mut requests).unwrap().is_again);
        let asked = ask(&mut requests).unwrap();
        assert!(asked.is_again, "as that was dropped, too");
        assert!(give(&mut requests, RequestId(1)).is_some());
    }

    #[tokio::test]
    async fn an_ended_process_loses_its_request_and_its_place() {
        let mut requests = Requests::new(3);
        let asked: Vec<Asked> =
            (0..3).map(|process| requests.ask(Vec::new(), Some(process)).unwrap()).collect();
        let ids = [give(&mut requests, RequestId(1)).unwrap(), give(&mut requests, RequestId(2)).unwrap()];
        assert_eq!(requests.process_ended(1), Some(ids[1]));
        let Overdue::Request(_) = requests.out_of_time(RequestId(1), false) else { panic!("others go on") };
        assert_eq!(requests.process_ended(0), None, "its caller has the reason");
        assert!(!requests.finish_overdue(ids[0]));
        assert_eq!(requests.process_ended(2), None);
        assert!(requests.ask(Vec::new(), Some(2)).unwrap().is_again);
        drop(asked);
    }
}
