//! Addresses such as `s3://bucket/prefix`, and the client for each kind of them. Credentials come
//! from the environment, as the tools of each provider have them.

use std::{env, io, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use http::Method;
use object_store::{
    BackoffConfig, ClientConfigKey, ClientOptions, ObjectStoreScheme, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey},
    azure::{AzureConfigKey, MicrosoftAzureBuilder},
    client::{HttpClient, HttpConnector, HttpRequestBody, ReqwestConnector},
    gcp::{GoogleCloudStorageBuilder, GoogleConfigKey},
    path::Path,
    signer::{SignedUrlOptions, Signer},
};
use serde::Deserialize;

use crate::{
    failure::Words,
    files::Options,
    remote::{Store, Uploads},
};

/// A request that the server has not answered after so long is repeated.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The longest pause between two attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// What an address leads to.
pub(crate) struct Opened {
    pub(crate) location: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) uploads: Option<Arc<dyn Uploads>>,
    pub(crate) prefix: String,
}

/// The client for an address.
pub(crate) fn open(address: &str, options: &Options) -> io::Result<Opened> {
    let url = parse(address)?;
    let (scheme, path) = ObjectStoreScheme::parse(&url).map_err(|_| unknown(&url))?;
    // Encryption comes from a library that is chosen once for a process.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let bucket = url.host_str().unwrap_or_default().to_owned();
    let failed = |error: object_store::Error| io::Error::from(Words::new(&bucket, &options.variables).failure(&error));
    let retries = RetryConfig {
        backoff: BackoffConfig { max_backoff: BACKOFF_MAX, ..BackoffConfig::default() },
        max_retries: usize::MAX,
        retry_timeout: options.patience,
    };
    let timeout = format!("{} ms", TIMEOUT.min(options.patience).as_millis());
    let given = |name: &str| options.variables.contains_key(name) || env::var(name).is_ok();
    let told = || options.variables.iter().map(|(name, value)| (name.to_ascii_lowercase(), value));
    let mut uploads: Option<Arc<dyn Uploads>> = None;
    let store: Arc<dyn Store> = match scheme {
        ObjectStoreScheme::AmazonS3 => {
            let mut builder = AmazonS3Builder::from_env().with_url(url.as_str()).with_retry(retries);
            for (name, value) in told() {
                if let Ok(key) = name.parse() {
                    builder = builder.with_config(key, value);
                }
            }
            // Not every server can remove several objects at once.
            builder = builder.with_config(AmazonS3ConfigKey::DisableBulkDelete, "true");
            if !given("AWS_TIMEOUT") {
                builder = builder.with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), timeout);
            }
            let endpoints = [AmazonS3ConfigKey::Endpoint, AmazonS3ConfigKey::S3Endpoint];
            let mut endpoints = endpoints.iter().filter_map(|key| builder.get_config_value(key));
            if endpoints.any(|endpoint| endpoint.starts_with("http://")) {
                builder = builder.with_allow_http(true);
            }
            let store = Arc::new(builder.build().map_err(failed)?);
            let client = ReqwestConnector::default();
            let client =
                client.connect(&ClientOptions::new().with_allow_http(true).with_timeout(TIMEOUT)).map_err(failed)?;
            uploads = Some(Arc::new(S3Uploads { store: Arc::clone(&store), client }));
            store
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            let mut builder = GoogleCloudStorageBuilder::from_env().with_url(url.as_str()).with_retry(retries);
            for (name, value) in told() {
                if let Ok(key) = name.parse() {
                    builder = builder.with_config(key, value);
                }
            }
            if !given("GOOGLE_TIMEOUT") {
                builder = builder.with_config(GoogleConfigKey::Client(ClientConfigKey::Timeout), timeout);
            }
            Arc::new(builder.build().map_err(failed)?)
        }
        ObjectStoreScheme::MicrosoftAzure => {
            let mut builder = MicrosoftAzureBuilder::from_env().with_url(url.as_str()).with_retry(retries);
            for (name, value) in told() {
                if let Ok(key) = name.parse() {
                    builder = builder.with_config(key, value);
                }
            }
            if !given("AZURE_TIMEOUT") {
                builder = builder.with_config(AzureConfigKey::Client(ClientConfigKey::Timeout), timeout);
            }
            Arc::new(builder.build().map_err(failed)?)
        }
        _ => return Err(unknown(&url)),
    };
    let location = address.trim_end_matches('/').to_owned();
    Ok(Opened { location, store, uploads, prefix: path.to_string() })
}

/// The address, if it can be one. Messages do not repeat it if it may have a password.
fn parse(address: &str) -> io::Result<url::Url> {
    let wrong = |problem: &str| io::Error::new(io::ErrorKind::InvalidInput, problem.to_owned());
    let url = url::Url::parse(address).map_err(|error| {
        wrong(&format!("this is no address of an object store ({error}); write one such as s3://bucket/prefix"))
    })?;
    let is_azure = url.scheme().starts_with("abfs");
    if url.password().is_some() || (!url.username().is_empty() && !is_azure) {
        return Err(wrong(
            "an address of an object store has no credentials in it; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
             what the provider has in their place",
        ));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("an address of an object store ends with its prefix, such as s3://bucket/prefix"));
    }
    Ok(url)
}

fn unknown(url: &url::Url) -> io::Error {
    let reason = format!(
        "{}:// is no kind of object store that Outcrop knows; write s3://bucket/prefix, gs://bucket/prefix or \
         az://container/prefix",
        url.scheme()
    );
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

/// Lists uploads of S3, which the crate for object stores cannot.
struct S3Uploads {
    store: Arc<AmazonS3>,
    client: HttpClient,
}

/// The time in which a signed request is sent.
const SIGNED_FOR: Duration = Duration::from_secs(300);

/// One page of the answer to `GET /?uploads`.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Page {
    is_truncated: bool,
    next_key_marker: String,
    next_upload_id_marker: String,
    upload: Vec<Upload>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Upload {
    key: String,
    upload_id: String,
}

impl Uploads for S3Uploads {
    fn list(&self, prefix: String) -> BoxFuture<'_, object_store::Result<Vec<(Path, String)>>> {
        async move {
            let (mut found, mut key, mut id) = (Vec::new(), String::new(), String::new());
            loop {
                let mut query = vec![("uploads", String::new()), ("prefix", prefix.clone())];
                if !key.is_empty() {
                    query.extend([("key-marker", key), ("upload-id-marker", id)]);
                }
                let page = self.page(query).await?;
                for upload in page.upload.into_iter().filter(|upload| upload.key.starts_with(&prefix)) {
                    found.push((Path::parse(upload.key)?, upload.upload_id));
                }
                (key, id) = (page.next_key_marker, page.next_upload_id_marker);
                if !page.is_truncated || key.is_empty() {
                    return Ok(found);
                }
            }
        }
        .boxed()
    }
}

impl S3Uploads {
    async fn page(&self, query: Vec<(&str, String)>) -> object_store::Result<Page> {
        // What went wrong is said without the address: it has a signature in it.
        let failed = |what: String| object_store::Error::Generic { store: "S3", source: what.into() };
        let options = SignedUrlOptions::new().with_query(query);
        let url = self.store.signed_url_opts(Method::GET, &Path::default(), SIGNED_FOR, &options).await?;
        let request = http::Request::builder().method(Method::GET).uri(url.as_str()).body(HttpRequestBody::empty());
        let request = request.map_err(|_| failed("the list of uploads has no address".to_owned()))?;
        let answer = self.client.execute(request).await;
        let answer = answer.map_err(|error| failed(format!("cannot list uploads: {:?}", error.kind())))?;
        let status = answer.status();
        let body = answer.into_body().bytes().await;
        let body = body.map_err(|error| failed(format!("cannot list uploads: {:?}", error.kind())))?;
        let text = String::from_utf8_lossy(&body);
        if !status.is_success() {
            return Err(failed(format!("cannot list uploads: status code: {} {text}", status.as_u16())));
        }
        quick_xml::de::from_str(&text).map_err(|_| failed("the server's list of uploads cannot be read".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_cannot_be_used_are_refused_without_repeating_them() {
        for (address, problem) in [
            ("s3://me:secret@bucket/prefix", "no credentials"),
            ("s3://secret@bucket/prefix", "no credentials"),
            ("ftp://bucket/prefix", "ftp:// is no kind"),
            ("file:///tmp", "file:// is no kind"),
            ("s3:bucket", "no kind"),
            ("bucket", "no address"),
            ("s3://bucket/prefix?versionId=1", "ends with its prefix"),
        ] {
            let error = open(address, &Options::default()).err().expect(address).to_string();
            assert!(error.contains(problem), "{address}: {error}");
            assert!(!error.contains("secret"), "{address}: {error}");
        }
    }

    #[test]
    fn a_list_of_uploads_is_read() {
        let text = "<?xml version=\"1.0\"?><ListMultipartUploadsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
                    <Bucket>b</Bucket><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>\
                    <NextUploadIdMarker>i</NextUploadIdMarker>\
                    <Upload><Key>a/b</Key><UploadId>1</UploadId><Owner><ID>x</ID></Owner></Upload>\
                    <Upload><UploadId>2</UploadId><Key>a/c</Key></Upload></ListMultipartUploadsResult>";
        let page: Page = quick_xml::de::from_str(text).unwrap();
        let upload = |key: &str, id: &str| Upload { key: key.to_owned(), upload_id: id.to_owned() };
        assert_eq!((page.is_truncated, &*page.next_key_marker, &*page.next_upload_id_marker), (true, "k", "i"));
        assert_eq!(page.upload, [upload("a/b", "1"), upload("a/c", "2")]);
        let none: Page = quick_xml::de::from_str("<ListMultipartUploadsResult/>").unwrap();
        assert_eq!(none, Page::default());
    }
}
