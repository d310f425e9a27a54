//! `mayfly up --reach`: the services of this host that functions reach.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, bail};

const NEEDED: &str = "an address with a port is needed, such as 127.0.0.1:6379";

/// The address of one service.
///
/// # Errors
/// It is none that an instance can have as well.
pub fn service(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.replace("localhost:", "127.0.0.1:").parse().map_err(|_| NEEDED.to_string())?;
    let ip = address.ip();
    if address.port() == 0 || ip.is_unspecified() || ip.is_multicast() {
        return Err(NEEDED.into());
    }
    if matches!(ip, IpAddr::V6(_)) && !ip.is_loopback() {
        return Err("of IPv6 only [::1] can be reached".into());
    }
    if address.port() == worker::RUNTIME_PORT {
        return Err(format!("port {} is the Runtime API's in every instance", worker::RUNTIME_PORT));
    }
    Ok(address)
}

/// Checks all of them together.
///
/// # Errors
/// Two have one port, or functions live in VMs.
pub fn check(services: &[SocketAddr], in_vm: bool) -> Result<()> {
    if in_vm && !services.is_empty() {
        bail!("--reach: functions in VMs reach no service of the host (leave out --sandbox vm)");
    }
    for (at, one) in services.iter().enumerate() {
        if let Some(other) = services[..at].iter().find(|other| other.port() == one.port() && *other != one) {
            bail!(
                "--reach: {other} and {one} have one port, and would be one service at host.docker.internal"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_single_addresses_with_a_port() {
        for good in ["127.0.0.1:6379", "localhost:5432", "192.0.2.7:80", "[::1]:1"] {
            assert!(service(good).is_ok(), "{good}");
        }
        let wrong =
            ["6379", "127.0.0.1", "db:1", "0.0.0.0:1", "127.0.0.1:0", "127.0.0.1:70000", "224.0.0.1:1"];
        for wrong in wrong {
            assert_eq!(service(wrong).unwrap_err(), NEEDED, "{wrong}");
        }
        assert!(service("[2001:db8::1]:1").unwrap_err().contains("IPv6"));
        assert!(service("127.0.0.1:9001").unwrap_err().contains("Runtime API"));
    }

    #[test]
    fn one_port_is_one_service() {
        let of = |texts: &[&str]| texts.iter().map(|text| service(text).unwrap()).collect::<Vec<_>>();
        assert!(check(&of(&["127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:2"]), false).is_ok());
        assert!(check(&of(&["127.0.0.1:1", "127.0.0.2:1"]), false).is_err());
        assert!(check(&of(&["127.0.0.1:1"]), true).is_err());
        assert!(check(&[], true).is_ok());
    }
}
