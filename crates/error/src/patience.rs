//! Calls that wait, and programs that want to be asked meanwhile: whether the user has pressed
//! Ctrl-C, or whether what is waited for can still come.

use std::{cell::RefCell, rc::Rc, time::Duration};

use crate::{Error, ErrorKind};

/// So often a call that waits asks.
pub const ASK_EVERY: Duration = Duration::from_millis(100);

/// What a call waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// What is under way, or another process.
    Others,
    /// That the program gives back what it holds.
    Program,
}

type Ask = Rc<dyn Fn(Awaited) -> bool>;

thread_local! {
    static ASK: RefCell<Option<Ask>> = const { RefCell::new(None) };
}

/// Calls something. Whatever waits in it, on this thread, asks `ask` from time to time, and fails
/// when that says that it has lost patience. No lock is held meanwhile.
pub fn asking<T>(ask: impl Fn(Awaited) -> bool + 'static, call: impl FnOnce() -> T) -> T {
    struct Before(Option<Ask>);
    impl Drop for Before {
        fn drop(&mut self) {
            ASK.set(self.0.take());
        }
    }
    let _before = Before(ASK.replace(Some(Rc::new(ask))));
    call()
}

/// Whether somebody wants to be asked while this thread waits.
pub fn is_asked() -> bool {
    ASK.with_borrow(Option::is_some)
}

/// Asks whether this thread is to go on waiting: an error if not.
pub fn ask(awaited: Awaited) -> Result<(), Error> {
    let ask = ASK.with_borrow(Clone::clone);
    match ask.is_some_and(|ask| ask(awaited)) {
        true => Err(Error::new(ErrorKind::Busy, "the program has ended the call while it waited")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_asks_the_innermost_who_wants_to_be_asked() {
        assert!(!is_asked() && ask(Awaited::Others).is_ok());
        asking(
            |awaited| awaited == Awaited::Program,
            || {
                assert!(is_asked() && ask(Awaited::Others).is_ok() && ask(Awaited::Program).is_err());
                asking(|_| false, || assert!(ask(Awaited::Program).is_ok()));
                assert!(ask(Awaited::Program).is_err());
                std::thread::spawn(|| assert!(!is_asked())).join().unwrap();
            },
        );
        assert!(!is_asked());
    }
}
