//! Page stores, one process for each trust domain: `mayfly share`, in a cgroup of its own, on a socket in a folder that only
//! the domain's containers mount, and for programs of those containers' cgroups only, whatever they say they are.
//!
//! A thread keeps them. A store that ends is started again, later each time; programs keep what they share meanwhile. Stores end
//! with the agent; the next agent's stores get the programs' segments again when these call.

mod state;
mod supervisor;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context, Result};

use crate::base::cgroup::Parent;
use crate::domains::trust_domain::Domain;
use state::{SharedStates, held};
use supervisor::{GRACE, Order, Places, Supervisor, Wanted, wanted};

pub use state::{Members, Program, State};

/// The stores of a node.
#[derive(Clone)]
pub struct Stores {
    orders: Sender<Order>,
    states: SharedStates,
    places: Places,
    wanted: Wanted,
}

impl Stores {
    /// Starts the thread. `data` is the agent's folder; without `cgroups` stores run in the agent's own.
    ///
    /// # Errors
    /// The folders cannot be made.
    pub fn start(data: &Path, program: Program, cgroups: Option<Parent>) -> Result<Stores> {
        let places = Places(data.to_owned());
        for (name, mode) in [("domains", 0o755), ("stores", 0o700)] {
            let folder = data.join(name);
            fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode))?;
        }
        let (orders, receiver) = channel();
        let states = SharedStates::default();
        let wanted = Wanted::default();
        let mut supervisor =
            Supervisor::new(program, cgroups, places.clone(), states.clone(), wanted.clone());
        std::thread::Builder::new().name("stores".into()).spawn(move || supervisor.run(&receiver))?;
        Ok(Stores { orders, states, places, wanted })
    }

    /// The folder that containers of the domain mount; its socket appears as soon as the store is up.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn folder(&self, domain: &Domain) -> Result<PathBuf> {
        let folder = self.places.folder(domain);
        wanted(&self.wanted).insert(domain.clone());
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
        Ok(folder)
    }

    /// Serves these, and nobody else, from now on.
    pub fn serve(&self, domain: &Domain, members: Members) {
        if members == Members::Nobody {
            wanted(&self.wanted).remove(domain);
        } else {
            wanted(&self.wanted).insert(domain.clone());
        }
        let _ = self.orders.send(Order::Serve(domain.clone(), members));
    }

    /// How all are.
    pub fn states(&self) -> BTreeMap<Domain, State> {
        held(&self.states).clone()
    }

    /// Ends all stores. Programs keep what they share.
    pub fn end(&self) {
        let (sender, done) = channel();
        if self.orders.send(Order::End(sender)).is_ok() {
            let _ = done.recv_timeout(GRACE * 2);
        }
    }
}
