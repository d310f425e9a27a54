//! Page stores, a process for each trust domain: `mayfly share` in a cgroup of its own. Its socket is in a
//! folder that only the domain's containers mount. It serves only processes in those containers' cgroups,
//! which the kernel reports.
//!
//! A thread supervises them. It restarts a store that exits, after a longer delay each time; programs keep
//! their shared pages meanwhile. Stores end with the agent. The next agent's stores get the programs'
//! segments when the programs next advise memory.

mod state;
mod supervisor;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context, Result};

use crate::base::cgroup::ParentCgroup;
use crate::domains::trust_domain::TrustDomain;
use state::{SharedStates, lock_states};
use supervisor::{DomainsInUse, GRACE, Order, Paths, Supervisor, lock_in_use};

pub use state::{Members, Program, State};

/// The stores of a node.
#[derive(Clone)]
pub struct PageStores {
    orders: Sender<Order>,
    states: SharedStates,
    paths: Paths,
    in_use: DomainsInUse,
}

impl PageStores {
    /// Starts the supervisor's thread. `data` is the agent's folder; without `cgroups` stores run in the
    /// agent's own.
    ///
    /// # Errors
    /// The folders cannot be made.
    pub fn start(data: &Path, program: Program, cgroups: Option<ParentCgroup>) -> Result<PageStores> {
        let paths = Paths(data.to_owned());
        for (name, mode) in [("domains", 0o755), ("stores", 0o700)] {
            let folder = data.join(name);
            fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode))?;
        }
        let (orders, receiver) = channel();
        let states = SharedStates::default();
        let in_use = DomainsInUse::default();
        let mut supervisor = Supervisor::new(program, cgroups, paths.clone(), states.clone(), in_use.clone());
        std::thread::Builder::new().name("stores".into()).spawn(move || supervisor.run(&receiver))?;
        Ok(PageStores { orders, states, paths, in_use })
    }

    /// The folder that containers of the domain mount; its socket appears as soon as the store is up.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn folder(&self, domain: &TrustDomain) -> Result<PathBuf> {
        let folder = self.paths.folder(domain);
        lock_in_use(&self.in_use).insert(domain.clone());
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
        Ok(folder)
    }

    /// Serves these members, and no others, from now on.
    pub fn serve(&self, domain: &TrustDomain, members: Members) {
        if members == Members::None {
            lock_in_use(&self.in_use).remove(domain);
        } else {
            lock_in_use(&self.in_use).insert(domain.clone());
        }
        let _ = self.orders.send(Order::Serve(domain.clone(), members));
    }

    /// The state of each store.
    pub fn states(&self) -> BTreeMap<TrustDomain, State> {
        lock_states(&self.states).clone()
    }

    /// Ends all stores. Programs keep their shared pages.
    pub fn end(&self) {
        let (sender, done) = channel();
        if self.orders.send(Order::End(sender)).is_ok() {
            let _ = done.recv_timeout(GRACE * 2);
        }
    }
}
