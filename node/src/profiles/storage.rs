//! The storage of profiles: a folder, which all nodes may share, or a bucket with Amazon S3's protocol.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::{BackoffConfig, ClientOptions, MultipartUpload, ObjectStore, ObjectStoreExt, RetryConfig};
use tokio::fs::File;
use tokio::io::AsyncReadExt;

const BUCKET: &str = "s3://";
/// The size of a part in a multipart upload: Amazon S3's minimum, 5 MiB, and some more.
const PART_BYTES: usize = 8 << 20;
/// For one request, after which the agent gives up a server that hangs.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Of one request, at once; the upload queue later retries the profile.
const RETRIES: usize = 2;

/// A folder or bucket for files by name.
#[derive(Clone)]
pub struct Storage {
    store: Arc<dyn ObjectStore>,
    /// The prefix of keys: empty, or `some/folder/`.
    prefix: String,
    name: String,
}

impl Storage {
    /// Opens a folder, which it makes, or `s3://BUCKET/PREFIX`, which it does not contact before the first
    /// [`Self::put`]. A bucket's address and credentials are the variables of Amazon's SDKs
    /// (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, …), as for `mayfly train`.
    ///
    /// # Errors
    /// The folder cannot be made; the name is no bucket's; a variable is wrong.
    pub fn open(name: &str) -> Result<Storage> {
        let (store, prefix): (Arc<dyn ObjectStore>, _) = match name.split_once("://") {
            None => {
                std::fs::create_dir_all(name).with_context(|| format!("cannot make {name}"))?;
                (Arc::new(LocalFileSystem::new_with_prefix(name)?), String::new())
            }
            Some(("s3", rest)) => {
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                let prefix = prefix.trim_matches('/');
                ensure!(
                    !bucket.is_empty() && object_store::path::Path::parse(prefix).is_ok(),
                    "{name}: no name of a bucket: s3://BUCKET or s3://BUCKET/PREFIX"
                );
                let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
                (Arc::new(bucket_of(bucket).with_context(|| name.to_owned())?), prefix)
            }
            Some(_) => bail!("{name}: profiles go to a folder or to {BUCKET}BUCKET/PREFIX"),
        };
        Ok(Storage { store, prefix, name: name.trim_end_matches('/').to_owned() })
    }

    /// Stores a file under `key`, a path, atomically.
    ///
    /// # Errors
    /// It cannot be read or stored; then the key has what it had before, or nothing.
    pub async fn put(&self, key: &str, file: &Path) -> Result<()> {
        let shown = || format!("cannot write {}/{key}", self.name);
        let path = object_store::path::Path::parse(format!("{}{key}", self.prefix)).with_context(shown)?;
        let mut from = File::open(file).await.with_context(|| format!("cannot read {}", file.display()))?;
        let first = part(&mut from).await?;
        if first.len() < PART_BYTES {
            self.store.put(&path, first.into()).await.with_context(shown)?;
            return Ok(());
        }
        let mut upload = self.store.put_multipart(&path).await.with_context(shown)?;
        let put = put_parts(&mut *upload, first, &mut from).await;
        if put.is_err() {
            let _ = upload.abort().await; // else the bucket keeps the parts and charges for them
        }
        put.with_context(shown)
    }
}

async fn put_parts(upload: &mut dyn MultipartUpload, first: Vec<u8>, from: &mut File) -> Result<()> {
    let mut next = first;
    while !next.is_empty() {
        upload.put_part(next.into()).await?;
        next = part(from).await?;
    }
    upload.complete().await?;
    Ok(())
}

/// The file's next part; the last one is shorter than [`PART_BYTES`].
async fn part(file: &mut File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(PART_BYTES as u64).read_to_end(&mut bytes).await?;
    Ok(bytes)
}

fn bucket_of(name: &str) -> Result<impl ObjectStore> {
    // Fails if it is installed already; this process installs no other.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = ClientOptions::new()
        .with_timeout(REQUEST_TIMEOUT)
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_allow_http(true); // if the operator's AWS_ENDPOINT_URL is http://
    let retry = RetryConfig {
        backoff: BackoffConfig { max_backoff: CONNECT_TIMEOUT, ..BackoffConfig::default() },
        max_retries: RETRIES,
        retry_timeout: REQUEST_TIMEOUT,
    };
    let builder = AmazonS3Builder::from_env().with_client_options(options).with_retry(retry);
    Ok(builder.with_bucket_name(name).build()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[tokio::test]
    async fn stores_a_file_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("a/b");
        let storage = Storage::open(name.to_str().unwrap()).unwrap();
        fs::write(folder.path().join("file"), "profile").unwrap();
        storage.put("workload=a%2Fb/x.parquet", &folder.path().join("file")).await.unwrap();
        assert_eq!(fs::read_to_string(name.join("workload=a%2Fb/x.parquet")).unwrap(), "profile");
        assert!(storage.put("y/x", &folder.path().join("none")).await.is_err());
        assert!(!name.join("y/x").exists());
        let large = folder.path().join("large");
        for bytes in [PART_BYTES, PART_BYTES + 1] {
            fs::write(&large, vec![7; bytes]).unwrap();
            storage.put("z/large", &large).await.unwrap();
            assert_eq!(fs::read(name.join("z/large")).unwrap(), vec![7; bytes]);
        }
        fs::write(name.join("y"), "no folder").unwrap();
        assert!(storage.put("y/large", &large).await.is_err());
        let why = storage.put("y/x", &folder.path().join("file")).await.unwrap_err();
        assert!(why.to_string().contains("a/b/y/x"), "{why}");
    }

    #[test]
    fn invalid_storage_names_are_refused() {
        for (name, wanted) in [
            ("gs://bucket", "profiles go to a folder or to s3://"),
            ("s3://", "no name of a bucket"),
            ("s3:///prefix", "no name of a bucket"),
            ("s3://bucket/a/../b", "no name of a bucket"),
        ] {
            let why = Storage::open(name).err().expect(name);
            assert!(why.to_string().contains(wanted), "{name}: {why}");
        }
        let storage = Storage::open("s3://bucket/some/folder/").ok().unwrap();
        assert_eq!(
            (storage.prefix.as_str(), storage.name.as_str()),
            ("some/folder/", "s3://bucket/some/folder")
        );
        assert_eq!(Storage::open("s3://bucket").ok().unwrap().prefix, "");
    }
}
