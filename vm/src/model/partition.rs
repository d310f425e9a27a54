//! The states of one partition and the events that lead from one to the next. Pure: no I/O, no clock.
//!
//! ```text
//!            plug            plugged           spawn             stop, agent lost
//!   absent ───────▶ plugging ───────▶ ready ◀─────────▶ in use ───────────────▶ draining
//!     ▲                │ failed       │ ▲ ▲     exited             exited, stopped │
//!     │                ▼       unplug │ │ └────────────────────────────────────────┘
//!     └──────────── unplugging ◀──────┘ │
//!       unplugged       └───────────────┘ refused, given up and plugged whole again
//!
//!   ready ◀─── released ─── held ◀─── pages of it are in use, although no instance is: ready, unplugging
//! ```
//! When QEMU ends, every partition is absent: its memory went with it.

use std::fmt;

use serde::{Deserialize, Serialize};
use vm_protocol::PartitionNumber;

use crate::base::error::Error;

/// The state of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// It has no memory and costs the host nothing.
    Absent,
    /// Memory was requested and is not all online yet.
    Plugging,
    /// Online and empty: an instance can be started in it.
    Ready,
    /// An instance runs in it.
    InUse {
        /// Its name.
        instance: String,
    },
    /// The instance is being stopped, or may have ended; some of its processes may still run.
    Draining {
        /// Its name.
        instance: String,
    },
    /// Being unplugged. No instance can be started in it.
    Unplugging,
    /// Its instance has ended, and pages of it are still in use. No instance can be started in it until they
    /// are free.
    Held {
        /// Which pages are in use, and by which process if the agent can find out.
        why: String,
    },
}

impl State {
    /// The state as error messages put it.
    pub fn doing(&self) -> &'static str {
        match self {
            State::Absent => "absent",
            State::Plugging => "being plugged",
            State::Ready => "ready",
            State::InUse { .. } => "in use",
            State::Draining { .. } => "being emptied",
            State::Unplugging => "being unplugged",
            State::Held { .. } => "held",
        }
    }

    /// The instance that uses it, or why none can.
    pub fn note(&self) -> &str {
        match self {
            State::Held { why } => why,
            _ => self.instance().unwrap_or(""),
        }
    }

    /// The instance that uses it, or did until now.
    pub fn instance(&self) -> Option<&str> {
        match self {
            State::InUse { instance } | State::Draining { instance } => Some(instance),
            _ => None,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Absent => "absent",
            State::Plugging => "plugging",
            State::Ready => "ready",
            State::InUse { .. } => "in use",
            State::Draining { .. } => "draining",
            State::Unplugging => "unplugging",
            State::Held { .. } => "held",
        })
    }
}

/// A request about a partition, or a report of what happened to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<'a> {
    /// A caller requests that it be plugged.
    Plug,
    /// The guest has brought it online.
    Plugged,
    /// The guest did not bring it online: the part that was plugged must be unplugged.
    PlugFailed,
    /// A caller requests an instance in it.
    Spawn(&'a str),
    /// The instance was not started.
    SpawnRefused(&'a str),
    /// It is unknown whether the instance was started.
    SpawnUnsure(&'a str),
    /// A caller requests the instance's end.
    Stop(&'a str),
    /// All processes of the instance have ended.
    Exited(&'a str),
    /// The agent died. Its successor kills the instances that it left.
    AgentLost,
    /// A caller requests that it be unplugged.
    Unplug,
    /// The guest did not unplug it, and it is plugged whole again.
    UnplugGivenUp,
    /// The guest has unplugged it.
    Unplugged,
    /// It is plugged, no instance runs in it, and yet pages of it are in use.
    Held(&'a str),
    /// Those pages are free again.
    Released,
    /// QEMU has ended.
    VmEnded,
}

/// A partition: its number, its state, and whether a thread operates on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its number.
    pub number: PartitionNumber,
    /// Its state.
    pub state: State,
    /// A thread operates on it. The recovery thread finishes the operation on a partition that is plugging,
    /// draining or unplugging and has no such thread.
    pub driven: bool,
}

impl Partition {
    /// An absent partition.
    pub fn new(number: PartitionNumber) -> Partition {
        Partition { number, state: State::Absent, driven: false }
    }

    /// Applies an event. A late report about an instance that has ended changes nothing.
    ///
    /// # Errors
    /// Only for requests (`Plug`, `Spawn`, `Stop`, `Unplug`): why it is not possible in this state.
    pub fn apply(&mut self, event: Event) -> Result<(), Error> {
        let number = self.number;
        let same = |instance: &str| self.state.instance() == Some(instance);
        let next = match (&self.state, event) {
            (_, Event::VmEnded) => State::Absent,

            (State::Ready | State::Held { .. }, Event::Held(why)) => State::Held { why: why.to_string() },
            (State::Held { .. }, Event::Released) => State::Ready,
            (State::Held { why }, Event::Spawn(_)) => {
                return Err(Error::Held { partition: number, why: why.clone() });
            }
            // The guest checks again whether it is empty.
            (State::Held { .. }, Event::Unplug) => State::Unplugging,

            (State::Absent, Event::Plug) => State::Plugging,
            (State::Plugging | State::Unplugging, Event::Plug) => return Err(self.moving()),
            (_, Event::Plug) => return Err(Error::Plugged(number)),

            (State::Plugging, Event::Plugged) => State::Ready,
            (State::Plugging, Event::PlugFailed) => State::Unplugging,

            (State::Ready, Event::Spawn(instance)) => State::InUse { instance: instance.to_string() },
            (State::Absent, Event::Spawn(_)) => return Err(Error::Absent(number)),
            (State::InUse { instance }, Event::Spawn(_)) => {
                return Err(Error::Used { partition: number, instance: instance.clone() });
            }
            (_, Event::Spawn(_)) => return Err(self.moving()),

            (State::InUse { .. }, Event::SpawnRefused(instance)) if same(instance) => State::Ready,
            (State::InUse { .. }, Event::SpawnUnsure(instance) | Event::Stop(instance)) if same(instance) => {
                State::Draining { instance: instance.to_string() }
            }
            (State::Draining { instance }, Event::Stop(asked)) if same(asked) && !self.driven => {
                State::Draining { instance: instance.clone() }
            }
            (State::Draining { .. }, Event::Stop(asked)) if same(asked) => return Err(self.moving()),
            (_, Event::Stop(instance)) => return Err(Error::NoSuchInstance(instance.to_string())),

            (State::InUse { .. } | State::Draining { .. }, Event::Exited(instance)) if same(instance) => {
                State::Ready
            }
            (State::InUse { instance }, Event::AgentLost) => State::Draining { instance: instance.clone() },

            (State::Ready, Event::Unplug) => State::Unplugging,
            (State::Unplugging, Event::Unplug) if !self.driven => State::Unplugging,
            (State::Absent, Event::Unplug) => return Err(Error::Absent(number)),
            (State::InUse { instance }, Event::Unplug) => {
                return Err(Error::Used { partition: number, instance: instance.clone() });
            }
            (_, Event::Unplug) => return Err(self.moving()),

            (State::Unplugging, Event::UnplugGivenUp) => State::Ready,
            (State::Unplugging, Event::Unplugged) => State::Absent,

            // A late report: about an earlier instance, or after the VM ended.
            (state, _) => state.clone(),
        };
        self.state = next;
        Ok(())
    }

    /// Whether the recovery thread should finish the operation on it.
    pub fn is_abandoned(&self) -> bool {
        !self.driven && matches!(self.state, State::Plugging | State::Draining { .. } | State::Unplugging)
    }

    fn moving(&self) -> Error {
        Error::Moving { partition: self.number, doing: self.state.doing() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states() -> Vec<State> {
        let instance = "a".to_string();
        let held = State::Held { why: "a pipe".to_string() };
        let used = [State::InUse { instance: instance.clone() }, State::Draining { instance }, held];
        [State::Absent, State::Plugging, State::Ready, State::Unplugging].into_iter().chain(used).collect()
    }

    fn events() -> Vec<Event<'static>> {
        let named = ["a", "b"].into_iter().flat_map(|name| {
            [
                Event::Spawn(name),
                Event::SpawnRefused(name),
                Event::SpawnUnsure(name),
                Event::Stop(name),
                Event::Exited(name),
            ]
        });
        let plain = [Event::Plug, Event::Plugged, Event::PlugFailed, Event::AgentLost];
        let rest = [Event::Unplug, Event::UnplugGivenUp, Event::Unplugged, Event::VmEnded];
        let held = [Event::Held("a pipe"), Event::Held("a socket"), Event::Released];
        named.chain(plain).chain(rest).chain(held).collect()
    }

    /// Every state with every event: these pairs change the state, and no others do.
    #[test]
    fn transitions_are_those_of_the_diagram() {
        let in_use = || State::InUse { instance: "a".to_string() };
        let draining = || State::Draining { instance: "a".to_string() };
        let held = |why: &str| State::Held { why: why.to_string() };
        let arrows = [
            (State::Absent, Event::Plug, State::Plugging),
            (State::Plugging, Event::Plugged, State::Ready),
            (State::Plugging, Event::PlugFailed, State::Unplugging),
            (State::Ready, Event::Spawn("a"), in_use()),
            (State::Ready, Event::Spawn("b"), State::InUse { instance: "b".to_string() }),
            (State::Ready, Event::Unplug, State::Unplugging),
            (in_use(), Event::SpawnRefused("a"), State::Ready),
            (in_use(), Event::SpawnUnsure("a"), draining()),
            (in_use(), Event::Stop("a"), draining()),
            (in_use(), Event::Exited("a"), State::Ready),
            (in_use(), Event::AgentLost, draining()),
            (draining(), Event::Exited("a"), State::Ready),
            (State::Unplugging, Event::UnplugGivenUp, State::Ready),
            (State::Unplugging, Event::Unplugged, State::Absent),
            (State::Ready, Event::Held("a pipe"), held("a pipe")),
            (State::Ready, Event::Held("a socket"), held("a socket")),
            (held("a pipe"), Event::Held("a socket"), held("a socket")),
            (held("a pipe"), Event::Held("a pipe"), held("a pipe")),
            (held("a pipe"), Event::Released, State::Ready),
            (held("a pipe"), Event::Unplug, State::Unplugging),
        ];
        for state in states() {
            for event in events() {
                let mut partition =
                    Partition { number: PartitionNumber(3), state: state.clone(), driven: true };
                let outcome = partition.apply(event.clone());
                let arrow = arrows.iter().find(|(from, with, _)| *from == state && *with == event);
                let expected = match arrow {
                    _ if event == Event::VmEnded => State::Absent,
                    Some((_, _, to)) => to.clone(),
                    None => state.clone(),
                };
                assert_eq!(partition.state, expected, "{state} with {event:?}");
                let wanted = matches!(event, Event::Plug | Event::Spawn(_) | Event::Stop(_) | Event::Unplug);
                assert_eq!(
                    outcome.is_err(),
                    wanted && arrow.is_none(),
                    "{state} with {event:?}: {outcome:?}"
                );
            }
        }
    }

    #[test]
    fn abandoned_operation_can_be_resumed() {
        for (state, event) in [
            (State::Unplugging, Event::Unplug),
            (State::Draining { instance: "a".to_string() }, Event::Stop("a")),
        ] {
            let mut partition = Partition { number: PartitionNumber(0), state: state.clone(), driven: false };
            assert!(partition.is_abandoned());
            assert_eq!((partition.apply(event), &partition.state), (Ok(()), &state));
        }
    }

    #[test]
    fn refusals_suggest_a_remedy() {
        let refusal = |state: State, event| {
            Partition { number: PartitionNumber(3), state, driven: true }
                .apply(event)
                .unwrap_err()
                .to_string()
        };
        let used = State::InUse { instance: "a".to_string() };
        assert_eq!(refusal(used, Event::Unplug), "partition 3 is in use by instance a: stop it first");
        let held = State::Held { why: "2 pages: in a pipe".to_string() };
        assert_eq!(
            refusal(held, Event::Spawn("b")),
            "partition 3 is held, no instance can have it until that is free: 2 pages: in a pipe"
        );
        assert_eq!(refusal(State::Absent, Event::Unplug), "partition 3 is absent: plug it first");
        assert_eq!(refusal(State::Ready, Event::Plug), "partition 3 is already plugged");
        assert_eq!(
            refusal(State::Plugging, Event::Spawn("b")),
            "partition 3 is being plugged: try again when that is over"
        );
    }
}
