//! What went wrong on the way to a server, in words that say what to do and give no credentials
//! away.

use std::{collections::BTreeMap, env, io, time::Duration};

/// What is known of a request that has failed.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) cause: Cause,
    pub(crate) message: String,
}

/// Why a request has failed, as far as it matters what to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The object does not exist.
    Missing,
    /// The object exists already, and the request was on condition that it does not.
    Exists,
    /// The server has refused the request, which has had no effect.
    Refused(io::ErrorKind),
    /// The server has not said that it has carried out the request; it may have.
    Unknown,
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        let kind = match failure.cause {
            Cause::Missing => io::ErrorKind::NotFound,
            Cause::Exists => io::ErrorKind::AlreadyExists,
            Cause::Refused(kind) => kind,
            Cause::Unknown => io::ErrorKind::TimedOut,
        };
        Self::new(kind, failure.message)
    }
}

impl Failure {
    pub(crate) fn refused(kind: io::ErrorKind, message: impl Into<String>) -> Self {
        Self { cause: Cause::Refused(kind), message: message.into() }
    }

    pub(crate) fn is_missing(&self) -> bool {
        self.cause == Cause::Missing
    }
}

/// What messages need to know of a bucket.
#[derive(Clone, Default)]
pub(crate) struct Words {
    bucket: String,
    secrets: Vec<String>,
}

/// Variables with credentials. Their values are in no message.
const SECRET: [&str; 11] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_SSE_CUSTOMER_KEY_BASE64",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
];

/// A shorter secret could be a part of any word.
const SECRET_BYTES_MIN: usize = 4;

/// As much of a server's own words as a message repeats.
const CHARS_MAX: usize = 300;

impl Words {
    /// `variables` come before those of the environment.
    pub(crate) fn new(bucket: &str, variables: &BTreeMap<String, String>) -> Self {
        let secrets = SECRET.iter().filter_map(|name| variables.get(*name).cloned().or_else(|| env::var(name).ok()));
        Self { bucket: bucket.to_owned(), secrets: secrets.filter(|it| it.len() >= SECRET_BYTES_MIN).collect() }
    }

    /// The failure that the client reports.
    pub(crate) fn failure(&self, error: &object_store::Error) -> Failure {
        use object_store::Error;
        let text = error.to_string();
        let code = between(&text, "<Code>", "</Code>");
        let cause = match error {
            _ if code == Some("NoSuchBucket") || text.contains("NoSuchBucket") => {
                let message = format!("bucket {:?} does not exist; create it, or correct the address", self.bucket);
                return Failure::refused(io::ErrorKind::Other, message);
            }
            Error::NotFound { .. } => Cause::Missing,
            Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotModified { .. } => Cause::Exists,
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                return Failure::refused(io::ErrorKind::PermissionDenied, self.no_access(&text));
            }
            Error::NotImplemented { .. } | Error::NotSupported { .. } => Cause::Refused(io::ErrorKind::Unsupported),
            Error::InvalidPath { .. } | Error::UnknownConfigurationKey { .. } => {
                Cause::Refused(io::ErrorKind::InvalidInput)
            }
            _ => match between(&text, "status code: ", " ").and_then(|status| status.parse::<u16>().ok()) {
                // A request that came too late, or too often, may be repeated.
                Some(408 | 429) => Cause::Unknown,
                Some(400) if code == Some("RequestTimeout") => Cause::Unknown,
                Some(401 | 403) => return Failure::refused(io::ErrorKind::PermissionDenied, self.no_access(&text)),
                Some(501) => Cause::Refused(io::ErrorKind::Unsupported),
                Some(status) if (300..500).contains(&status) => Cause::Refused(io::ErrorKind::Other),
                _ => Cause::Unknown,
            },
        };
        Failure { cause, message: self.said(&text) }
    }

    fn no_access(&self, text: &str) -> String {
        format!(
            "the server refuses access to bucket {:?} ({}); check the credentials (AWS_ACCESS_KEY_ID, \
             AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN for S3), the region, and what they may do",
            self.bucket,
            self.said(text)
        )
    }

    /// The failure of a request that had no answer in time.
    pub(crate) fn silence(&self, waited: Duration) -> Failure {
        let message = format!("bucket {:?}: the server did not answer within {} s", self.bucket, waited.as_secs());
        Failure { cause: Cause::Unknown, message }
    }

    /// What the server, or else the client, has said: its own words where it has any. The document
    /// around them repeats parts of the request, and so of its signature.
    fn said(&self, text: &str) -> String {
        let own = between(text, "<Code>", "</Code>").map(|code| match between(text, "<Message>", "</Message>") {
            Some(message) => format!("{message} [{code}]"),
            None => code.to_owned(),
        });
        let plain = || {
            let text = text.split_once('<').map_or(text, |(plain, _)| plain);
            without_queries(text.trim_end_matches([' ', ':', '-', '\n']))
        };
        self.without_secrets(&own.unwrap_or_else(plain))
    }

    /// A text of which nobody knows what it repeats.
    pub(crate) fn without_secrets(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            text = text.replace(secret, "***");
        }
        text.chars().take(CHARS_MAX).collect()
    }
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(start)?;
    rest.split_once(end).map(|(found, _)| found)
}

/// Addresses without what follows a question mark: it may be a signature.
fn without_queries(text: &str) -> String {
    let words = text.split(' ').map(|word| match word.contains("://") {
        true => word.split_once('?').map_or(word, |(address, _)| address),
        false => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: text.to_owned().into() }
    }

    #[test]
    fn a_message_has_the_servers_words_and_nothing_of_the_request() {
        let words = Words { bucket: "b".to_owned(), secrets: vec!["KEYID".to_owned()] };
        let text = "Error performing PUT http://h/b/k?X-Amz-Signature=abc in 2s - Server returned non-2xx status code: \
                    403 Forbidden: <Error><Code>SignatureDoesNotMatch</Code><Message>No match for KEYID</Message>\
                    <StringToSign>secret</StringToSign></Error>";
        let failure = words.failure(&generic(text));
        assert!(failure.message.contains("(No match for *** [SignatureDoesNotMatch])"), "{}", failure.message);
        assert!(!failure.message.contains("secret") && !failure.message.contains("abc"), "{}", failure.message);
        assert_eq!(failure.cause, Cause::Refused(io::ErrorKind::PermissionDenied));
        let failure = words.failure(&generic("cannot reach http://h/b?X-Amz-Signature=abc now"));
        assert_eq!(failure.message, "Generic S3 error: cannot reach http://h/b now");
        assert_eq!(failure.cause, Cause::Unknown);
    }

    #[test]
    fn what_may_have_had_an_effect_is_told_from_what_has_not() {
        let words = Words::default();
        for (status, cause) in [
            (503, Cause::Unknown),
            (500, Cause::Unknown),
            (429, Cause::Unknown),
            (501, Cause::Refused(io::ErrorKind::Unsupported)),
            (400, Cause::Refused(io::ErrorKind::Other)),
        ] {
            let text = format!("Server returned non-2xx status code: {status} Something: ");
            assert_eq!(words.failure(&generic(&text)).cause, cause, "{status}");
        }
        let text = "Server returned non-2xx status code: 404 Not Found: <Error><Code>NoSuchBucket</Code></Error>";
        let missing = object_store::Error::NotFound { path: String::new(), source: text.to_owned().into() };
        assert_eq!(words.failure(&missing).cause, Cause::Refused(io::ErrorKind::Other), "not a missing object");
    }
}
