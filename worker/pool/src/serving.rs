//! What instances do with requests: they ask for them, are given them, answer them.

use super::{Action, Function, FunctionId, InstanceId, Phase, Pool, Refusal, RequestId, Time};

impl Pool {
    /// The instance that is given the next request. Of several the one that has most already, so that others
    /// become idle; of these the one used last.
    pub(super) fn ready_instance(&self, function: FunctionId) -> Option<InstanceId> {
        let Function { ready, at_once, .. } = self.functions.get(&function)?;
        if *at_once == 1 {
            return ready.last().copied();
        }
        let load = |instance: &InstanceId| self.instances.get(instance).map(|known| known.running.len());
        ready.iter().copied().max_by_key(load)
    }

    pub(super) fn dispatch(&mut self, instance: InstanceId, request: RequestId, actions: &mut Vec<Action>) {
        let known = self.instances.get_mut(&instance).expect("ready instances are known");
        known.running.push(request);
        known.asks -= 1;
        if let Some(function) = self.functions.get_mut(&known.function) {
            function.fresh.begin(instance, self.now);
            if !known.has_place() {
                function.ready.retain(|ready| *ready != instance);
            }
        }
        actions.push(Action::Dispatch { instance, request });
    }

    /// This request of the instance has been answered; the instance may still be busy with the rest.
    pub fn answered(&mut self, instance: InstanceId, request: RequestId, now: Time) -> Vec<Action> {
        let mut actions = Vec::new();
        let Some(known) = self.instances.get_mut(&instance) else { return actions };
        let Some(place) = known.running.iter().position(|running| *running == request) else {
            return actions;
        };
        known.running.swap_remove(place);
        known.idle_since = now;
        self.now = now;
        if let Some(function) = self.functions.get_mut(&known.function) {
            function.fresh.end(instance);
        }
        if known.asks == 0 {
            known.finishing.push(now);
        } else {
            // It asked for more while it had this.
            self.has_changed(instance, &mut actions);
        }
        actions
    }

    /// The instance asks for a request: it has started, or has served one, or serves several.
    pub fn ready(&mut self, instance: InstanceId, now: Time) -> Vec<Action> {
        self.now = now;
        let mut actions = Vec::new();
        let Some(known) = self.instances.get_mut(&instance) else { return actions };
        match known.phase {
            Phase::Stopping => return actions,
            Phase::Starting => (known.phase, known.asked) = (Phase::Serving, now),
            // One that serves one at a time has answered what it had.
            Phase::Serving if known.at_once == 1 => known.running.clear(), // still fresh for a moment
            Phase::Serving => {}
        }
        known.finishing.pop();
        known.asks = if known.at_once == 1 { 1 } else { known.asks + 1 };
        if known.running.is_empty() {
            known.idle_since = now;
        }
        self.has_changed(instance, &mut actions);
        actions
    }

    /// The instance asks for more, or has a request less: it serves what waits, or ends.
    fn has_changed(&mut self, instance: InstanceId, actions: &mut Vec<Action>) {
        let known = self.instances.get_mut(&instance).expect("its caller has found it");
        if known.is_done() {
            known.phase = Phase::Stopping;
            actions.push(Action::Stop { instance });
        }
        if known.has_place() {
            let function = self.functions.get_mut(&known.function).expect("removed functions' retire");
            function.ready.retain(|ready| *ready != instance);
            function.ready.push(instance);
            let function = known.function;
            self.serve_queue(function, actions);
        }
        self.schedule(actions);
    }

    /// A dispatched request never reached its instance: it waits again, as the oldest. The instance is about
    /// to end, unless it has others, or asks for others.
    pub fn undelivered(&mut self, instance: InstanceId, request: RequestId, now: Time) -> Vec<Action> {
        self.now = now;
        let mut actions = Vec::new();
        let Some(known) = self.instances.get_mut(&instance) else { return actions };
        let Some(place) = known.running.iter().position(|running| *running == request) else {
            return actions;
        };
        known.running.swap_remove(place);
        let owner = known.function;
        if known.running.is_empty() {
            known.idle_since = now;
            if (known.asks == 0 || known.retired) && self.end(instance) {
                actions.push(Action::Stop { instance });
            }
        }
        let may_not_run = self.reserved(owner) == Some(0);
        match self.ready_instance(owner) {
            Some(other) => self.dispatch(other, request, &mut actions),
            None => match self.functions.get_mut(&owner) {
                Some(_) if may_not_run => {
                    actions.push(Action::Refuse { request, refusal: Refusal::Reserved });
                }
                Some(function) => function.queue.push_front((request, now)),
                None => actions.push(Action::Refuse { request, refusal: Refusal::Removed }),
            },
        }
        self.schedule(&mut actions);
        actions
    }

    /// The instance is to serve no further request, and ends once it has none.
    pub fn drain(&mut self, instance: InstanceId) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.instances.get(&instance).is_some_and(|known| known.phase == Phase::Serving) {
            self.retire_one(instance);
            self.has_changed(instance, &mut actions);
        }
        actions
    }

    /// No further request is dispatched to the instance.
    pub(super) fn retire_one(&mut self, instance: InstanceId) {
        let known = self.instances.get_mut(&instance).expect("its caller has found it");
        known.retired = true;
        if let Some(function) = self.functions.get_mut(&known.function) {
            function.ready.retain(|ready| *ready != instance);
        }
    }
}
