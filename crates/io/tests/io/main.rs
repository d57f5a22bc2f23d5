//! Integration tests of transfers. One program, so that only one has to be linked.

mod transfers;
