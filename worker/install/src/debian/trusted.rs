//! The certificates that programs in a root trust: those of its package ca-certificates, in the two forms
//! that the scripts of packages would write. They are not the host's.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha1::{Digest, Sha1};

const CERTIFICATES: &str = "usr/share/ca-certificates/mozilla";
const FOLDER: &str = "etc/ssl/certs";
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";
/// The password of Java's own stores of certificates.
const PASSWORD: &str = "changeit";

/// Writes `ca-certificates.crt` and `java/cacerts`.
///
/// # Errors
/// There are no certificates, or they cannot be written.
pub fn write(root: &Path) -> Result<()> {
    let place = root.join(CERTIFICATES);
    let mut texts = Vec::new();
    for entry in fs::read_dir(&place).with_context(|| format!("cannot read {}", place.display()))? {
        let entry = entry?;
        texts.push((entry.file_name().to_string_lossy().into_owned(), fs::read_to_string(entry.path())?));
    }
    texts.sort();
    ensure!(!texts.is_empty(), "{} is empty", place.display());
    let all: String = texts.iter().map(|(_, text)| format!("{}\n", text.trim())).collect();
    let certificates: Vec<(String, Vec<u8>)> = texts
        .iter()
        .map(|(name, text)| Ok((name.to_lowercase(), der(text).with_context(|| name.clone())?)))
        .collect::<Result<_>>()?;
    let folder = root.join(FOLDER);
    fs::create_dir_all(folder.join("java"))?;
    for made in ["etc/ssl", FOLDER, "etc/ssl/certs/java"] {
        fs::set_permissions(root.join(made), fs::Permissions::from_mode(0o755))?;
    }
    for (name, bytes) in
        [("ca-certificates.crt", all.into_bytes()), ("java/cacerts", key_store(&certificates))]
    {
        let mut file = File::create(folder.join(name))?;
        file.write_all(&bytes)?;
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
    }
    Ok(())
}

/// The certificate of a text in PEM.
fn der(text: &str) -> Result<Vec<u8>> {
    let (_, rest) = text.split_once(BEGIN).context("it is no certificate")?;
    let (encoded, _) = rest.split_once(END).context("it is no certificate")?;
    Ok(BASE64.decode(encoded.split_whitespace().collect::<String>())?)
}

/// A key store in the format JKS, version 2: a header, entries, and a digest of the password and of these.
fn key_store(certificates: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let number = |bytes: &mut Vec<u8>, number: usize| bytes.extend((number as u32).to_be_bytes());
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend((text.len() as u16).to_be_bytes());
        bytes.extend(text.as_bytes());
    };
    bytes.extend([0xFE, 0xED, 0xFE, 0xED]);
    number(&mut bytes, 2);
    number(&mut bytes, certificates.len());
    for (name, certificate) in certificates {
        number(&mut bytes, 2); // a trusted certificate
        let ascii: String = name.chars().filter(char::is_ascii).collect();
        text(&mut bytes, &ascii);
        bytes.extend([0; 8]); // when it was added
        text(&mut bytes, "X.509");
        number(&mut bytes, certificate.len());
        bytes.extend(certificate);
    }
    let password = PASSWORD.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>();
    let digest = Sha1::new().chain_update(password).chain_update("Mighty Aphrodite").chain_update(&bytes);
    bytes.extend(digest.finalize());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_there_in_both_forms() {
        let root = tempfile::tempdir().unwrap();
        let place = root.path().join(CERTIFICATES);
        fs::create_dir_all(&place).unwrap();
        assert!(write(root.path()).unwrap_err().to_string().ends_with("is empty"));
        fs::write(place.join("B.crt"), format!("{BEGIN}\nAQID\nBA==\n{END}\n")).unwrap();
        write(root.path()).unwrap();
        let read = |name: &str| fs::read(root.path().join(FOLDER).join(name)).unwrap();
        assert!(read("ca-certificates.crt").starts_with(BEGIN.as_bytes()));
        let store = read("java/cacerts");
        let head = [0xFE, 0xED, 0xFE, 0xED, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 5];
        assert_eq!(store[..head.len()], head);
        let body = b"b.crt\0\0\0\0\0\0\0\0\0\x05X.509\0\0\0\x04\x01\x02\x03\x04";
        assert_eq!(store[head.len()..store.len() - 20], body[..]);
        fs::write(place.join("C.crt"), "none").unwrap();
        assert!(format!("{:#}", write(root.path()).unwrap_err()).contains("C.crt: it is no certificate"));
    }
}
