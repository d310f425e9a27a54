//! Freezes an instance that has no work, as Lambda does: nothing in it runs until there is work, except its
//! idle work (heap trim, page merge), once, and again if merging failed. Idle work costs about 0.5 s of a
//! processor, so it yields to instances that work or start.
//!
//! ```text
//!   asks for work ── GRACE ──► frozen ── idle work is due ──► thawed ──► frozen ── work ──► runs
//! ```

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use worker_page::data::Event;

use super::Instance;
use crate::sandbox::history;
use crate::sandbox::interface::Sandbox;

/// Without work for so long, it is frozen. Under load instances have work sooner, and freezing costs them
/// nothing.
const GRACE: Duration = Duration::from_millis(100);
/// The longest that idle work may take, with the wait for other instances' idle work.
const IDLE_WORK: Duration = Duration::from_secs(30);
/// The longest time until its next idle work that a runtime may ask for.
const MOST: Duration = Duration::from_secs(3600);
/// How soon after idle work it may have more, at first.
const REPEATS_AFTER: Duration = Duration::from_secs(5);
/// How often a runtime may do idle work while it waits: once between two requests, for instances that are
/// never idle for long, and once later.
const MOST_IDLE_WORK: usize = 2;

/// Whether and since when an instance has no work, and its times for idle work.
#[derive(Debug, Default)]
pub(super) struct Idle {
    since: Option<Instant>,
    /// When its runtime wants to do idle work; past times are removed.
    idle_work: VecDeque<Instant>,
    /// How soon it may have more idle work than this.
    repeats_after: Duration,
    /// When its memory goes to the swap, once, if it is frozen then.
    pages_out: Option<Instant>,
    frozen: bool,
    /// It has been thawed for idle work, and yields to others.
    gives_way: bool,
    /// Whether it has worked before.
    worked: bool,
}

impl Idle {
    /// Whether it may run at `now`, and when that changes next.
    fn look(&self, now: Instant) -> (bool, Option<Instant>) {
        let Some(since) = self.since else { return (true, Some(now + GRACE)) };
        let grace = since + GRACE;
        let rest = self.idle_work.front().map(|begins| (*begins, *begins + IDLE_WORK));
        let runs = now < grace || rest.is_some_and(|(begins, ends)| begins <= now && now < ends);
        let changes = [Some(grace), rest.map(|rest| rest.0), rest.map(|rest| rest.1), self.pages_out];
        (runs, changes.into_iter().flatten().filter(|change| *change > now).min())
    }

    fn is_to_freeze(&self, now: Instant) -> bool {
        !self.frozen && !self.look(now).0
    }

    /// The runtime's report may be false, so it waits twice as long each time.
    fn did_idle_work(&mut self, now: Instant, again_after: Option<Duration>) {
        self.idle_work.pop_front();
        // The instance's processes take turns: the time of the next one begins now.
        if let Some(next) = self.idle_work.front_mut() {
            *next = now.max(*next);
        }
        if let Some(after) = again_after
            && self.idle_work.is_empty()
        {
            let after = after.clamp(self.repeats_after, MOST);
            self.idle_work.push_back(now + after);
            self.repeats_after = MOST.min(2 * after);
        }
    }
}

impl Instance {
    /// The instance waits for work from now on, unless it has some. It does idle work at the times that its
    /// processes which wait have asked for, as some rest while others work.
    pub(super) fn idles(&self) {
        let now = Instant::now();
        let worked = {
            let mut state = self.state();
            if !state.requests.is_idle() {
                return;
            }
            let idle_work = state.requests.idle_work();
            let idle = &mut state.idle;
            idle.since = Some(now);
            idle.repeats_after = REPEATS_AFTER;
            let most = MOST_IDLE_WORK * self.deployment.settings.at_once() as usize;
            let due = idle_work.into_iter().filter(|at| *at + GRACE >= now);
            idle.idle_work = due.take(most).map(|at| at.clamp(now, now + MOST)).collect();
            let pages_out = self.deployment.settings.page_out_after_s;
            idle.pages_out = pages_out.map(|seconds| now + Duration::from_secs(seconds.into()));
            idle.worked
        };
        if worked && let Some(sandbox) = self.sandbox.get() {
            sandbox.may_do_idle_work();
        }
    }

    /// The instance has work, or is about to: thaws it.
    pub(super) fn works(&self) {
        let idle = &mut self.state().idle;
        idle.since = None;
        idle.pages_out = None;
        idle.worked = true;
        if std::mem::take(&mut idle.gives_way)
            && let Some(sandbox) = self.sandbox.get()
        {
            sandbox.give_way(false);
        }
        if idle.frozen {
            idle.frozen = false;
            if let Some(sandbox) = self.sandbox.get() {
                sandbox.thaw();
            }
            self.idle_changes.notify_one();
        }
    }

    /// The instance has done idle work, and may want more if it still has no work then.
    pub(super) fn did_idle_work(&self, again_after: Option<Duration>) {
        self.state().idle.did_idle_work(Instant::now(), again_after);
        self.idle_changes.notify_one();
    }

    /// Freezes and thaws the instance until this future is dropped, which may leave it frozen.
    pub(super) async fn freeze_while_idle(&self, sandbox: &dyn Sandbox) -> Infallible {
        loop {
            let now = Instant::now();
            if self.state().idle.is_to_freeze(now) {
                sandbox.may_do_idle_work();
            }
            let (changes, pages_out) = {
                let idle = &mut self.state().idle;
                let (runs, changes) = idle.look(now);
                if runs && idle.frozen {
                    idle.gives_way = true;
                    sandbox.give_way(true);
                    sandbox.thaw();
                    idle.frozen = false;
                } else if !runs && !idle.frozen {
                    idle.frozen = sandbox.freeze();
                    self.context.count.freezes.fetch_add(u64::from(idle.frozen), Ordering::Relaxed);
                }
                let is_due = idle.frozen && idle.pages_out.is_some_and(|due| due <= now);
                if is_due {
                    idle.pages_out = None;
                }
                (changes, is_due)
            };
            if pages_out {
                self.page_out(sandbox).await;
                continue;
            }
            let changed = self.idle_changes.notified();
            match changes {
                Some(change) => {
                    let _ = tokio::time::timeout_at(change.into(), changed).await;
                }
                None => changed.await,
            }
        }
    }

    async fn page_out(&self, sandbox: &dyn Sandbox) {
        let begun = Instant::now();
        let bytes = sandbox.page_out().await;
        let message = (bytes == 0).then(|| "nothing was paged out: has this host swap?".into());
        let ms = history::ms(begun.elapsed());
        self.note(Event { ms, bytes: Some(bytes), message, ..self.event("page_out") });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn idle_instance_is_frozen_and_runs_for_its_idle_work() {
        let now = Instant::now();
        let mut idle = Idle { since: Some(now), idle_work: [now + 300 * MS].into(), ..Idle::default() };
        assert_eq!(idle.look(now), (true, Some(now + GRACE)));
        assert_eq!(idle.look(now + GRACE), (false, Some(now + 300 * MS)));
        assert_eq!(idle.look(now + 300 * MS), (true, Some(now + 300 * MS + IDLE_WORK)));
        // One that never reports its idle work gets no more time.
        assert_eq!(idle.look(now + 300 * MS + IDLE_WORK), (false, None));
        idle.idle_work.clear();
        assert_eq!(idle.look(now + 300 * MS), (false, None));
        idle.pages_out = Some(now + 900 * MS);
        assert_eq!(idle.look(now + 300 * MS), (false, Some(now + 900 * MS)));
        idle.since = None;
        assert!(idle.look(now + 300 * MS).0, "it has work");
    }

    #[test]
    fn repeated_idle_work_becomes_rare() {
        let now = Instant::now();
        let idle_work = [now, now + 300 * MS].into();
        let mut idle = Idle { since: Some(now), idle_work, repeats_after: REPEATS_AFTER, ..Idle::default() };
        idle.did_idle_work(now, Some(MS));
        assert_eq!(idle.idle_work, [now + 300 * MS], "it has a rest before it");
        for times in [1, 2, 4] {
            idle.did_idle_work(now, Some(MS));
            assert_eq!(idle.idle_work, [now + times * REPEATS_AFTER]);
        }
        assert!(!idle.look(now + REPEATS_AFTER).0 && idle.look(now + 4 * REPEATS_AFTER).0);
        idle.did_idle_work(now, Some(Duration::MAX));
        assert_eq!(idle.idle_work, [now + MOST]);
        idle.did_idle_work(now, None);
        assert_eq!(idle.idle_work, []);
    }

    #[test]
    fn processes_that_take_turns_have_time_each() {
        let now = Instant::now();
        let mut idle = Idle { since: Some(now), idle_work: [now; 3].into(), ..Idle::default() };
        for turns in 1..3 {
            let done = now + turns * IDLE_WORK * 9 / 10;
            assert!(idle.look(done).0, "turn {turns}");
            idle.did_idle_work(done, None);
        }
        assert!(!idle.look(now + 3 * IDLE_WORK).0);
    }

    #[test]
    fn instance_is_not_frozen_during_immediate_idle_work() {
        let now = Instant::now();
        let idle = Idle { since: Some(now), idle_work: [now].into(), ..Idle::default() };
        assert!(idle.look(now + GRACE).0 && idle.look(now + IDLE_WORK / 2).0);
        assert!(!idle.look(now + IDLE_WORK).0);
    }
}
