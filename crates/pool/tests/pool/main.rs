//! What is promised of a pool.

mod arrays;
mod crash;
mod hostile;
mod kill;
mod medium;
mod model;
