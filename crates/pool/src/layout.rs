//! What elements of pools may be: values of which every byte means something, and which mean the
//! same to every process that opens the pool.

/// An element of a pool. Derive it: `#[derive(Versioned, Clone, Copy)]`.
///
/// Integers of a fixed size, floating-point numbers, arrays of elements, and structures without
/// padding of which all fields are elements.
///
/// What the next process could misread is refused when the program is compiled. A length that
/// differs between machines:
///
/// ```compile_fail
/// #[derive(outcrop_pool::Versioned, Clone, Copy)]
/// struct Cell { count: usize }
/// ```
///
/// An address, and a value of which not every pattern of bytes is valid:
///
/// ```compile_fail
/// #[derive(outcrop_pool::Versioned, Clone, Copy)]
/// struct Cell { next: *const u8 }
/// ```
///
/// ```compile_fail
/// #[derive(outcrop_pool::Versioned, Clone, Copy)]
/// struct Cell { is_wet: bool }
/// ```
///
/// Padding, which would leak memory of the program into the file:
///
/// ```compile_fail
/// #[derive(outcrop_pool::Versioned, Clone, Copy)]
/// struct Cell { rho: f64, level: u32 }
/// ```
///
/// More alignment than the memory of a pool has:
///
/// ```compile_fail
/// #[derive(outcrop_pool::Versioned, Clone, Copy)]
/// #[repr(align(8192))]
/// struct Cell { rho: [f64; 1024] }
/// ```
///
/// A generic structure, which may have padding with some types:
///
/// ```compile_fail
/// #[derive(outcrop_pool::Versioned, Clone, Copy)]
/// struct Cell<T> { rho: T, flag: u32 }
/// ```
///
/// Macros of the program do not get in between:
///
/// ```compile_fail
/// macro_rules! assert { ($($anything:tt)*) => {} }
/// #[derive(outcrop_pool::Versioned, Clone, Copy)]
/// struct Cell { rho: f64, level: u32 }
/// ```
///
/// The same without these is fine:
///
/// ```
/// #[derive(outcrop_pool::Versioned, Clone, Copy)]
/// struct Cell { rho: f64, level: u32, flag: u32 }
/// ```
///
/// # Safety
///
/// Every pattern of bytes is a valid value, there is no padding, no pointer and no interior
/// mutability, the alignment is at most [`ALIGN_MAX`], and two types with the same `LAYOUT` have
/// the same fields at the same offsets.
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

/// The most that an element may be aligned to: arrays begin at a page.
pub const ALIGN_MAX: usize = outcrop_format::PAGE_BYTES;

macro_rules! plain {
    ($($type:ty)*) => {
        $(
            // SAFETY: a number without padding, of which every pattern of bytes is valid.
            unsafe impl Versioned for $type {
                const LAYOUT: u64 = hash(hash(START, stringify!($type).as_bytes()), &size_of::<$type>().to_le_bytes());
            }
        )*

        /// All of them: their layouts and names.
        const NUMBERS: &[(u64, &str, u32)] = &[$((<$type>::LAYOUT, stringify!($type), size_of::<$type>() as u32)),*];
    };
}

/// The layout and the length of the number type of this name. Complex numbers are two numbers each.
pub fn named(name: &str) -> Option<(u64, usize)> {
    let (part, count) = match name {
        "c64" => ("f32", 2),
        "c128" => ("f64", 2),
        _ => (name, 1),
    };
    let &(number, _, bytes) = NUMBERS.iter().find(|(_, known, _)| *known == part)?;
    Some((if count == 1 { number } else { several(number, count) }, bytes as usize * count as usize))
}

plain!(u8 i8 u16 i16 u32 i32 u64 i64 u128 i128 f32 f64);

// SAFETY: an array has the elements one after the other, and nothing between them.
unsafe impl<T: Versioned, const N: usize> Versioned for [T; N] {
    const LAYOUT: u64 = several(T::LAYOUT, N as u64);
}

/// The layout of so many elements with a layout.
const fn several(layout: u64, count: u64) -> u64 {
    hash(hash(START, &layout.to_le_bytes()), &count.to_le_bytes())
}

/// If elements with this layout are numbers, or up to 64 of them each: the name of the number type,
/// as in `f64`, its length, and how many of them an element has.
pub fn numbers(layout: u64, element_bytes: u32) -> Option<(&'static str, u32, u64)> {
    NUMBERS.iter().find_map(|&(number, name, bytes)| {
        let count = u64::from(element_bytes / bytes);
        let is_several = (1..=64).contains(&count) && several(number, count) == layout;
        (number == layout || is_several).then_some((name, bytes, count))
    })
}

/// So many elements of zeros.
pub fn zeros<T: Versioned>(len: usize) -> Vec<T> {
    // SAFETY: every pattern of bytes is a valid element.
    vec![unsafe { std::mem::zeroed() }; len]
}

/// The bytes of elements, to be filled from elsewhere.
pub fn bytes_mut<T: Versioned>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: elements have no padding, and every pattern of bytes is a valid one.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
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
