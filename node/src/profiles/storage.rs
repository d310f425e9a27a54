//! Where profiles go: a folder, which may be one of all nodes, or a bucket that speaks Amazon S3's protocol.

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
/// Of a large file, by one request: as much as Amazon S3 wants at least, and some more.
const PART_BYTES: usize = 8 << 20;
/// For one request. A server that hangs is given up then.
const PATIENCE: Duration = Duration::from_secs(30);
const TO_CONNECT: Duration = Duration::from_secs(5);
/// Of one request, at once; the outbox comes back later with what was not taken.
const RETRIES: usize = 2;

/// A folder or bucket for files by name.
#[derive(Clone)]
pub struct Storage {
    store: Arc<dyn ObjectStore>,
    /// What keys begin with: nothing, or `some/folder/`.
    prefix: String,
    name: String,
}

impl Storage {
    /// A folder, which is made, or `s3://BUCKET/PREFIX`, which is not looked at before something is put there. Of buckets the
    /// variables of Amazon's SDKs say where and as whom (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, …), as for `mayfly train`.
    ///
    /// # Errors
    /// It cannot be made; the name is no bucket's; a variable is wrong.
    pub fn of(name: &str) -> Result<Storage> {
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

    /// Puts a file there under `key`, a path, at one stroke.
    ///
    /// # Errors
    /// It cannot be read, or not be put there; nothing is there under that name then, or what was there before.
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
            let _ = upload.abort().await; // else its parts stay, and are paid for
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

/// The file's next part; less than a whole one is the last.
async fn part(file: &mut File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(PART_BYTES as u64).read_to_end(&mut bytes).await?;
    Ok(bytes)
}

fn bucket_of(name: &str) -> Result<impl ObjectStore> {
    // Who else in this process has said which, has said the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options =
        ClientOptions::new().with_timeout(PATIENCE).with_connect_timeout(TO_CONNECT).with_allow_http(true); // where the operator's AWS_ENDPOINT_URL says http://
    let retry = RetryConfig {
        backoff: BackoffConfig { max_backoff: TO_CONNECT, ..BackoffConfig::default() },
        max_retries: RETRIES,
        retry_timeout: PATIENCE,
    };
    let builder = AmazonS3Builder::from_env().with_client_options(options).with_retry(retry);
    Ok(builder.with_bucket_name(name).build()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[tokio::test]
    async fn a_file_is_there_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("a/b");
        let storage = Storage::of(name.to_str().unwrap()).unwrap();
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
    fn what_is_no_place_is_said() {
        for (name, wanted) in [
            ("gs://bucket", "profiles go to a folder or to s3://"),
            ("s3://", "no name of a bucket"),
            ("s3:///prefix", "no name of a bucket"),
            ("s3://bucket/a/../b", "no name of a bucket"),
        ] {
            let why = Storage::of(name).err().expect(name);
            assert!(why.to_string().contains(wanted), "{name}: {why}");
        }
        let storage = Storage::of("s3://bucket/some/folder/").ok().unwrap();
        assert_eq!(
            (storage.prefix.as_str(), storage.name.as_str()),
            ("some/folder/", "s3://bucket/some/folder")
        );
        assert_eq!(Storage::of("s3://bucket").ok().unwrap().prefix, "");
    }
}
