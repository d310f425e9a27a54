//! Which request gets a new instance: the oldest first, within concurrency, burst and memory; and which idle instance of
//! another function makes room for it.

use super::{Action, FunctionId, Instance, Phase, Pool, Refusal, Time};

/// For how long an instance that has answered is expected to ask for more.
const FINISHING: std::time::Duration = std::time::Duration::from_millis(100);

impl Pool {
    /// Instances that count against the limits: of one function, or of all that reserved nothing.
    fn running(&self, which: impl Fn(FunctionId) -> bool) -> u32 {
        self.instances.values().filter(|instance| instance.counts() && which(instance.function)).count()
            as u32
    }

    /// Whether the function's reservation, or what is left to those without, has a place for one more instance.
    fn has_concurrency(&self, function: FunctionId) -> bool {
        match self.functions[&function].reserved {
            Some(reserved) => self.running(|id| id == function) < reserved,
            None => {
                let shared = |id| self.functions.get(&id).is_none_or(|function| function.reserved.is_none());
                self.running(shared) < self.unreserved(None)
            }
        }
    }

    pub(super) fn what_is_short(&self, function: FunctionId) -> Refusal {
        let reserved = self.functions[&function].reserved;
        match reserved {
            Some(reserved) if self.running(|id| id == function) >= reserved => Refusal::Reserved,
            _ => Refusal::Capacity,
        }
    }

    /// Starts instances for requests that wait, the oldest first.
    pub(super) fn schedule(&mut self, actions: &mut Vec<Action>) {
        let mut waiting: Vec<(Time, FunctionId)> = self
            .functions
            .iter()
            .filter_map(|(id, function)| function.queue.front().map(|(_, since)| (*since, *id)))
            .collect();
        waiting.sort_unstable();
        for (_, function) in waiting {
            let queued = self.functions[&function].queue.len();
            let starting = |pool: &Pool, which: Option<FunctionId>| {
                let is_one =
                    |i: &&Instance| i.phase == Phase::Starting && which.is_none_or(|id| i.function == id);
                pool.instances.values().filter(is_one).count()
            };
            let now = self.now;
            let is_finishing = |i: &&Instance| {
                let soon = matches!(i.phase, Phase::Finishing(since) if now < since + FINISHING);
                soon && i.function == function && !i.retired
            };
            let finishing = self.instances.values().filter(is_finishing).count();
            while starting(self, Some(function)) + finishing < queued {
                if starting(self, None) >= self.capacity.starting as usize
                    || !self.make_room(function, actions)
                {
                    break;
                }
                let instance = self.next_instance;
                self.next_instance += 1;
                let memory_mib = self.functions[&function].memory_mib;
                let started = Instance { function, memory_mib, phase: Phase::Starting, retired: false };
                self.instances.insert(instance, started);
                actions.push(Action::Start { instance, function });
            }
        }
    }

    /// Whether one more instance of the function fits now. If not, ends idle instances of others, the one unused
    /// for longest first, until it will fit once they are gone.
    fn make_room(&mut self, function: FunctionId, actions: &mut Vec<Action>) -> bool {
        let wanted = self.functions[&function].memory_mib;
        loop {
            let own_fits = self.has_concurrency(function);
            if !own_fits && self.functions[&function].reserved.is_some() {
                return false;
            }
            // More can run than the reservations say while one has just been changed.
            let fits = own_fits && self.running(|_| true) < self.capacity.concurrency;
            let held = self.memory_mib();
            let leaving: u64 = self.instances.values().filter(|i| !i.counts()).map(|i| i.memory_mib).sum();
            if fits && held + wanted <= self.capacity.memory_mib {
                return true;
            }
            if fits && held - leaving + wanted <= self.capacity.memory_mib {
                return false;
            }
            let idle = self.instances.iter().filter_map(|(id, instance)| match instance.phase {
                Phase::Idle(since) if instance.function != function => Some((since, *id, instance.function)),
                _ => None,
            });
            // Ending an instance of a function with a reservation gives no concurrency to those without.
            let useful = idle.filter(|(_, _, owner)| own_fits || self.functions[owner].reserved.is_none());
            let Some((_, instance, _)) = useful.min() else { return false };
            self.end(instance);
            actions.push(Action::Stop { instance });
        }
    }
}
