//! Errors in the names of images.

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// What failed, on what, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not the name of an image.
    #[error("`{0}` names no image; a name is what a failed check prints, such as 17/subset-2f/90ab12cd")]
    NotAnId(String),
    /// The image belongs to another log.
    #[error("image {0} belongs to another log than this one; record the very same operations in the same order")]
    OtherLog(String),
    /// The log has no such image.
    #[error("this log has no image {0}: its position or the operations that it names are beyond the end")]
    NoSuchImage(String),
}
