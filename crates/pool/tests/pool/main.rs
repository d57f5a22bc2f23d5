//! What is promised of a pool.

mod arrays;
mod crash;
mod dax;
mod exhaustive;
mod foreign;
mod graphs;
mod hostile;
mod kill;
mod kinds;
mod links;
mod lists;
mod medium;
mod model;
mod place;
mod safe;
mod spill;
mod trees;
mod worth;
