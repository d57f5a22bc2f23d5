//! What elements of pools may be: values of which every byte means something, and which mean the
//! same to every process that opens the pool.

/// An element of a pool. Derive it: `#[derive(Versioned, Clone, Copy)]`.
///
/// Integers of a fixed size, floating-point numbers, arrays of elements, and structures without
/// padding of which all fields are elements.
///
/// # Safety
///
/// Every pattern of bytes is a valid value, there is no padding, no pointer and no interior
/// mutability, and two types with the same `LAYOUT` have the same fields at the same offsets.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an element of a pool",
    label = "not allowed in a pool",
    note = "a pool outlives the process: use integers of a fixed size (not `usize`), floating-point \
            numbers, arrays of them, and structures with `#[derive(Versioned, Clone, Copy)]`; \
            `bool`, `char`, enums, references and pointers are not allowed"
)]
pub unsafe trait Versioned: Copy + Send + Sync + 'static {
    /// A hash of the layout: names, types and offsets of all fields.
    const LAYOUT: u64;
}

macro_rules! plain {
    ($($type:ty)*) => {
        $(
            // SAFETY: a number without padding, of which every pattern of bytes is valid.
            unsafe impl Versioned for $type {
                const LAYOUT: u64 = hash(hash(START, stringify!($type).as_bytes()), &size_of::<$type>().to_le_bytes());
            }
        )*

        /// The name of the number type with this layout, as in `f64`.
        pub(crate) fn number(layout: u64) -> Option<&'static str> {
            [$((<$type>::LAYOUT, stringify!($type))),*].into_iter().find(|(known, _)| *known == layout).map(|(_, name)| name)
        }
    };
}

plain!(u8 i8 u16 i16 u32 i32 u64 i64 u128 i128 f32 f64);

// SAFETY: an array has the elements one after the other, and nothing between them.
unsafe impl<T: Versioned, const N: usize> Versioned for [T; N] {
    const LAYOUT: u64 = hash(hash(START, &T::LAYOUT.to_le_bytes()), &(N as u64).to_le_bytes());
}

/// The hash of nothing.
pub const START: u64 = 0xcbf2_9ce4_8422_2325;

/// Adds bytes to a hash (FNV-1a), and their number, so that what follows is not mistaken for them.
pub const fn hash(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    (hash ^ bytes.len() as u64).wrapping_mul(0x0000_0100_0000_01b3)
}
