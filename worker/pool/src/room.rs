//! Decides which request gets a new instance, the oldest first, within concurrency, burst and memory; and
//! which function's instance makes room for it.
//!
//! A function that has requests and no instance comes before all that have one, so that none starves. Of
//! those, one comes first whose versions and tenants have no instance either: many tenants of a function
//! delay each other, and no other function. Idle instances of others make room first. If there are none,
//! busy ones are drained: they serve what they have and then end. A function keeps one instance while it has
//! requests; where not even one of each fits, they take turns.

use std::collections::{BTreeMap, BTreeSet};

use super::{Action, FunctionId, Instance, Phase, Pool, Refusal, Time};

/// For how long an instance that has answered is expected to ask for more.
const FINISHING: std::time::Duration = std::time::Duration::from_millis(100);
/// For how long an instance that serves several requests at once is expected to ask for as many as it may.
const ASKING: std::time::Duration = std::time::Duration::from_secs(2);
/// For how long at least a function's only instance is left to it before another function has its turn.
const TURN: std::time::Duration = std::time::Duration::from_secs(2);

/// Instances and memory reserved for functions that wait for their first instance.
#[derive(Clone, Copy, Default)]
struct Reservation {
    instances: u32,
    memory_mib: u64,
}

impl Pool {
    /// Instances that count against the limits: of one function, or of all that reserved nothing.
    fn running(&self, which: impl Fn(FunctionId) -> bool) -> u32 {
        self.instances.values().filter(|instance| instance.counts() && which(instance.function)).count()
            as u32
    }

    /// Running instances of a function, its versions and tenants.
    fn running_of(&self, function: FunctionId) -> u32 {
        let parent = self.parent(function);
        self.running(|id| self.parent(id).unwrap_or(id) == parent.unwrap_or(function))
    }

    /// Whether ending an instance of one gives concurrency to the other: versions of a function share its
    /// reservation, and those without share the rest.
    fn share_concurrency(&self, one: FunctionId, other: FunctionId) -> bool {
        match self.reserved(other) {
            Some(_) => self.parent(one) == self.parent(other),
            None => self.reserved(one).is_none(),
        }
    }

    /// Whether an instance serves the function, or soon will.
    fn is_served(&self, function: FunctionId) -> bool {
        self.instances.values().any(|instance| instance.function == function && instance.serves())
    }

    /// Whether the function's reservation, or what is left to those without, has a place for one more
    /// instance.
    fn has_concurrency(&self, function: FunctionId) -> bool {
        match self.reserved(function) {
            Some(reserved) => self.running_of(function) < reserved,
            None => self.running(|id| self.reserved(id).is_none()) < self.unreserved(None),
        }
    }

    pub(super) fn limiting_resource(&self, function: FunctionId) -> Refusal {
        let Some(known) = self.functions.get(&function) else { return Refusal::Removed };
        if self.reserved(function).is_some_and(|reserved| self.running_of(function) >= reserved) {
            Refusal::Reserved
        } else if !self.has_concurrency(function) || self.running(|_| true) >= self.capacity.concurrency {
            Refusal::Concurrency
        } else if self.memory_mib() + known.memory_mib > self.capacity.memory_mib {
            Refusal::Memory
        } else {
            Refusal::Starting
        }
    }

    /// Starts instances for requests that wait, the oldest first.
    pub(super) fn schedule(&mut self, actions: &mut Vec<Action>) {
        let mut waiting: Vec<(Time, FunctionId)> = self
            .functions
            .iter()
            .filter_map(|(id, function)| function.queue.front().map(|(_, since)| (*since, *id)))
            .collect();
        if waiting.is_empty() {
            return;
        }
        waiting.sort_unstable();
        let served: BTreeSet<FunctionId> =
            self.instances.values().filter(|i| i.serves()).map(|i| self.family(i.function)).collect();
        // Stable: of equal ones the oldest request comes first.
        waiting.sort_by_key(|(_, id)| served.contains(&self.family(*id)));
        let mut reservation = Reservation::default();
        for (_, function) in &waiting {
            if !self.is_served(*function) && !self.start_one(*function, reservation, actions) {
                self.drain_for(*function);
                reservation.instances += 1;
                reservation.memory_mib += self.functions[function].memory_mib;
            }
        }
        for (_, function) in waiting {
            let at_once = self.functions[&function].at_once;
            // Those that wait for a busy instance need no other, nor do those whose instance is idle.
            let idle = if at_once == 1 { self.functions[&function].ready.len() } else { 0 };
            let queued = self.unheld(function).saturating_sub(idle);
            let expected: usize = self
                .instances
                .values()
                .filter(|i| i.function == function && i.phase == Phase::Serving && !i.retired)
                .map(|i| self.expected_asks(i))
                .sum();
            while self.is_served(function)
                && self.starting(Some(function)) * at_once + expected < queued
                && self.start_one(function, reservation, actions)
            {}
        }
    }

    /// How many more requests an instance is expected to ask for soon.
    fn expected_asks(&self, instance: &Instance) -> usize {
        let finishing = instance.finishing.iter().filter(|since| self.now < **since + FINISHING).count();
        // It has just started, and not all that run requests in it have asked.
        let young = instance.at_once > 1 && self.now < instance.asked + ASKING;
        let left = instance.at_once.saturating_sub(instance.asks + instance.running.len());
        if young { left } else { finishing.min(left) }
    }

    fn starting(&self, which: Option<FunctionId>) -> usize {
        let is_one = |i: &&Instance| i.phase == Phase::Starting && which.is_none_or(|id| i.function == id);
        self.instances.values().filter(is_one).count()
    }

    /// False if there is no room now, or the limit of starts is reached.
    fn start_one(
        &mut self,
        function: FunctionId,
        reservation: Reservation,
        actions: &mut Vec<Action>,
    ) -> bool {
        if self.starting(None) >= self.capacity.starting as usize
            || !self.make_room(function, reservation, actions)
        {
            return false;
        }
        let instance = self.next_instance;
        self.next_instance.0 += 1;
        let known = &self.functions[&function];
        let started = Instance {
            function,
            memory_mib: known.memory_mib,
            phase: Phase::Starting,
            since: self.now,
            retired: false,
            at_once: known.at_once,
            running: Vec::new(),
            asks: 0,
            asked: self.now,
            finishing: Vec::new(),
            idle_since: self.now,
        };
        self.instances.insert(instance, started);
        actions.push(Action::Start { instance, function });
        true
    }

    /// Whether one more instance of the function fits now. If not, ends idle instances of others, the one
    /// unused for longest first, until it will fit once they have ended.
    fn make_room(
        &mut self,
        function: FunctionId,
        reservation: Reservation,
        actions: &mut Vec<Action>,
    ) -> bool {
        let wanted = self.functions[&function].memory_mib + reservation.memory_mib;
        loop {
            let own_fits = self.has_concurrency(function);
            // After a change of a reservation, more can run for a while than it allows.
            let fits = own_fits && self.running(|_| true) + reservation.instances < self.capacity.concurrency;
            let held = self.memory_mib();
            let leaving: u64 = self.instances.values().filter(|i| !i.counts()).map(|i| i.memory_mib).sum();
            if fits && held + wanted <= self.capacity.memory_mib {
                return true;
            }
            if fits && held - leaving + wanted <= self.capacity.memory_mib {
                return false;
            }
            let others = self.instances.iter().filter(|(_, instance)| instance.function != function);
            let idle = others
                .filter_map(|(id, instance)| instance.idle().map(|since| (since, *id, instance.function)));
            let useful = idle.filter(|(_, _, owner)| own_fits || self.share_concurrency(*owner, function));
            let Some((_, instance, _)) = useful.min() else { return false };
            self.end(instance);
            actions.push(Action::Stop { instance });
        }
    }

    /// Has busy instances of other functions end after what they serve, until one of this function will
    /// fit: first of those that hold most, as long as they keep one; then those that have had their turn.
    fn drain_for(&mut self, function: FunctionId) {
        let wanted = self.functions[&function].memory_mib;
        loop {
            let own_fits = self.has_concurrency(function);
            let leaving = |i: &&Instance| !i.serves();
            let leaving_mib: u64 = self.instances.values().filter(leaving).map(|i| i.memory_mib).sum();
            let serving = self.instances.values().filter(|i| i.serves()).count() as u32;
            let drained = self.instances.values().any(|i| i.counts() && i.retired);
            let has_place = (own_fits || drained) && serving < self.capacity.concurrency;
            if has_place && self.memory_mib() - leaving_mib + wanted <= self.capacity.memory_mib {
                return;
            }
            let Some(victim) = self.victim(function, own_fits) else { return };
            self.retire_one(victim);
        }
    }

    /// The function that a version or tenant belongs to, or itself.
    fn family(&self, function: FunctionId) -> FunctionId {
        self.parent(function).unwrap_or(function)
    }

    fn victim(&self, function: FunctionId, own_fits: bool) -> Option<super::InstanceId> {
        // Beside another function, all versions and tenants of one count as one.
        let own = self.family(function);
        let holder = |id: FunctionId| if self.family(id) == own { id } else { self.family(id) };
        let mut served_by: BTreeMap<FunctionId, (u32, u64)> = BTreeMap::new();
        for instance in self.instances.values().filter(|instance| instance.serves()) {
            let (count, mib) = served_by.entry(holder(instance.function)).or_default();
            *count += 1;
            *mib += instance.memory_mib;
        }
        let others = self.instances.iter().filter(|(_, instance)| {
            instance.function != function
                && instance.serves()
                && instance.phase == Phase::Serving
                && instance.idle().is_none()
                && (own_fits || self.share_concurrency(instance.function, function))
        });
        let may_go = others.filter_map(|(id, instance)| {
            let (count, mib) = served_by[&holder(instance.function)];
            let has_others = count > 1;
            let had_its_turn = instance.since + TURN <= self.now;
            (has_others || had_its_turn).then_some((has_others, mib, std::cmp::Reverse(*id)))
        });
        may_go.max().map(|(.., id)| id.0)
    }
}
