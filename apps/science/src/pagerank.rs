//! PageRank: where a walker on a graph spends its time, who follows links and sometimes jumps
//! anywhere.
//!
//! The graph is made by R-MAT: its degrees follow a power law, as those of the web do. Each page
//! sums what its links bring in the order of the links, so nothing depends on threads.

use clap::{Args, value_parser};
use outcrop_pool::{Graph, Structure, Versioned};
use rayon::prelude::*;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{Error, Field, Keep, Keeper, Picture, Program, Random, Result, Stepped, Traffic, checkpoint::Part};

/// Which graph, and how exactly.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// The graph has 2 to this power pages.
    #[arg(long, value_name = "POWER", default_value_t = 17, value_parser = value_parser!(u64).range(1..=28))]
    pub scale: u64,
    /// Links for each page; some are the same, and count once.
    #[arg(long, value_name = "COUNT", default_value_t = 16, value_parser = value_parser!(u64).range(1..=1024))]
    pub degree: u64,
    /// The probability that the walker follows a link.
    #[arg(long, value_name = "PART", default_value_t = 0.85)]
    pub damping: f64,
    /// The end: all ranks together change by less than this.
    #[arg(long, value_name = "SUM", default_value_t = 1e-6)]
    pub tolerance: f64,
    /// The most iterations.
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub iterations: u64,
    /// The random graph.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

/// A page.
#[derive(Debug, Versioned, FromBytes, IntoBytes, Immutable, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Page {
    /// The part of its time that the walker spends here.
    pub rank: f64,
    /// How many links leave it.
    pub degree: u64,
}

/// A graph and the ranks of its pages.
pub struct PageRank {
    settings: Settings,
    web: Web,
}

impl Program for PageRank {
    const NAME: &'static str = "pagerank";
    const ABOUT: &'static str = "PageRank of a random graph whose degrees follow a power law";
    const EVERY: u64 = 1;
    type Settings = Settings;

    fn describe(settings: &Settings) -> Result<String> {
        let Settings { scale, degree, damping, tolerance, iterations, seed } = settings;
        Error::require((0.0..1.0).contains(damping), "--damping", || "from 0 to less than 1".to_owned())?;
        Error::require((0.0..=1.0).contains(tolerance), "--tolerance", || "from 0 to 1".to_owned())?;
        Ok(format!(
            "--scale {scale} --degree {degree} --damping {damping} --tolerance {tolerance} --iterations {iterations} \
             --seed {seed}"
        ))
    }

    fn iterations(settings: &Settings) -> u64 {
        settings.iterations
    }

    fn open(settings: &Settings, keeper: &mut Keeper) -> Result<Self> {
        Ok(Self { settings: settings.clone(), web: Web::open(settings, keeper)? })
    }

    fn begin(&mut self) {
        self.web.begin(&self.settings);
        let even = 1.0 / self.web.pages().len() as f64;
        self.web.pages_mut().iter_mut().for_each(|page| page.rank = even);
    }

    fn step(&mut self, _done: u64) -> Stepped {
        let (web, damping) = (&self.web, self.settings.damping);
        let pages = web.pages();
        let count = pages.len() as f64;
        // What a link brings. A page without links is left for any page.
        let brought: Vec<f64> = pages.par_iter().map(|page| page.rank / page.degree.max(1) as f64).collect();
        let lost = sum_in_order(pages, |page| if page.degree == 0 { page.rank } else { 0.0 });
        let jumps = (1.0 - damping) / count + damping * lost / count;
        let followed = |page: u32| web.sources(page).flatten().map(|from| brought[*from as usize]).sum::<f64>();
        let ranks: Vec<f64> =
            (0..pages.len() as u32).into_par_iter().map(|page| jumps + damping * followed(page)).collect();
        let changed: f64 = pages.iter().zip(&ranks).map(|(page, rank)| (page.rank - rank).abs()).sum();
        self.web.pages_mut().par_iter_mut().zip(ranks).for_each(|(page, rank)| page.rank = rank);
        // Pages are read and written one after the other; what links bring is read at random.
        let (pages, links) = (self.web.pages().len() as u64, self.web.links() as u64);
        let traffic =
            Traffic { read_bytes: 40 * pages + 12 * links, reads: links / 2, written_bytes: 32 * pages, writes: 0 };
        Stepped { traffic, is_last: changed < self.settings.tolerance }
    }

    fn kept(&mut self) -> Vec<&mut dyn Keep> {
        vec![&mut self.web]
    }

    fn report(&self) -> String {
        let pages = self.web.pages();
        let first = pages.iter().enumerate().max_by(|a, b| a.1.rank.total_cmp(&b.1.rank));
        let first = first.map_or(0, |(number, _)| number);
        format!(
            "{} pages, {} links; page {first} is the first, with {:.3} %",
            pages.len(),
            self.web.links(),
            100.0 * pages[first].rank
        )
    }

    /// How many pages have how many links, both as logarithms: a power law is a line.
    fn picture(&self) -> Option<Picture> {
        const SIZE: usize = 400;
        let pages = self.web.pages();
        let mut counts = std::collections::BTreeMap::<u64, u64>::new();
        pages.iter().filter(|page| page.degree > 0).for_each(|page| *counts.entry(page.degree).or_default() += 1);
        let most = (*counts.last_key_value()?.0 as f64).ln().max(1.0);
        let most_pages = (*counts.values().max()? as f64).ln().max(1.0);
        let mut picture = Picture::new(SIZE, SIZE, [255; 3]);
        for (degree, count) in counts {
            let along = |part: f64| 12.0 + part * (SIZE - 24) as f64;
            let at = [along((degree as f64).ln() / most), along(1.0 - (count as f64).ln() / most_pages)];
            picture.disc(at, 3.0, [24, 60, 140]);
        }
        Some(picture)
    }

    fn output(&self) -> Vec<u8> {
        self.pages().as_bytes().to_vec()
    }
}

impl PageRank {
    /// The pages.
    pub fn pages(&self) -> &[Page] {
        self.web.pages()
    }

    /// All links: from which page to which.
    pub fn all_links(&self) -> Vec<(u32, u32)> {
        let to_page = |page: u32| self.web.sources(page).flatten().map(move |from| (*from, page));
        (0..self.pages().len() as u32).flat_map(to_page).collect()
    }
}

/// A sum that does not depend on threads.
fn sum_in_order(pages: &[Page], value: impl Fn(&Page) -> f64 + Sync) -> f64 {
    let parts: Vec<f64> = pages.par_chunks(4096).map(|part| part.iter().map(&value).sum::<f64>()).collect();
    parts.iter().sum()
}

/// The graph, by the pages that links lead to: a page needs to know where its links come from.
enum Web {
    /// In plain memory (CSR). A checkpoint has the pages alone; the links are made again.
    Plain { pages: Field<Page>, starts: Vec<usize>, sources: Vec<u32> },
    /// In a pool, with everything. The values of links mean nothing.
    Pool(Box<Graph<Page, u8>>),
}

impl Web {
    fn open(settings: &Settings, keeper: &mut Keeper) -> Result<Self> {
        if let Some(pool) = keeper.pool() {
            return Ok(Self::Pool(Box::new(pool.graph("web")?)));
        }
        let count = 1 << settings.scale;
        let pages = keeper.array("pages", count)?;
        let links = rmat(settings);
        let mut starts = vec![0; count + 1];
        links.iter().for_each(|link| starts[link[0] as usize + 1] += 1);
        (0..count).for_each(|page| starts[page + 1] += starts[page]);
        Ok(Self::Plain { pages, starts, sources: links.iter().map(|link| link[1]).collect() })
    }

    /// Makes the links, as far as they are not made yet, and counts those that leave a page.
    fn begin(&mut self, settings: &Settings) {
        if let Self::Pool(graph) = self {
            let links: Vec<_> = rmat(settings).into_iter().map(|[to, from]| (to, from, 0)).collect();
            graph.add_nodes((0..1 << settings.scale).map(|_| Page { rank: 0.0, degree: 0 }));
            graph.add_edges(&links);
        }
        let mut degrees = vec![0; self.pages().len()];
        for page in 0..degrees.len() as u32 {
            self.sources(page).flatten().for_each(|from| degrees[*from as usize] += 1);
        }
        self.pages_mut().iter_mut().zip(degrees).for_each(|(page, degree)| page.degree = degree);
    }

    fn pages(&self) -> &[Page] {
        match self {
            Self::Plain { pages, .. } => pages,
            Self::Pool(graph) => graph.nodes(),
        }
    }

    fn pages_mut(&mut self) -> &mut [Page] {
        match self {
            Self::Plain { pages, .. } => pages.all(),
            Self::Pool(graph) => graph.nodes_mut(),
        }
    }

    fn links(&self) -> usize {
        match self {
            Self::Plain { sources, .. } => sources.len(),
            Self::Pool(graph) => graph.edge_count(),
        }
    }

    /// Where the links to a page come from, in ascending order.
    fn sources(&self, page: u32) -> impl Iterator<Item = &[u32]> {
        let (plain, pool) = match self {
            Self::Plain { starts, sources, .. } => {
                (Some(&sources[starts[page as usize]..starts[page as usize + 1]]), None)
            }
            Self::Pool(graph) => (None, Some(graph.slices(page).map(|(sources, _)| sources))),
        };
        plain.into_iter().chain(pool.into_iter().flatten())
    }
}

impl Keep for Web {
    fn parts(&self) -> Vec<Part<'_>> {
        match self {
            Self::Plain { pages, .. } => pages.parts(),
            Self::Pool(_) => Vec::new(),
        }
    }

    fn structure(&mut self) -> Option<&mut dyn Structure> {
        match self {
            Self::Plain { .. } => None,
            Self::Pool(graph) => Some(&mut **graph),
        }
    }
}

/// Links by the page that they lead to and the one that they come from, each once.
fn rmat(settings: &Settings) -> Vec<[u32; 2]> {
    let mut random = Random::new(settings.seed);
    // Each level of the matrix sends a link to one of its quarters.
    let mut link = || {
        (0..settings.scale).fold([0u32; 2], |[to, from], _| {
            let quarter = random.unit();
            let (down, right) = (quarter >= 0.76, (0.57..0.76).contains(&quarter) || quarter >= 0.95);
            [to << 1 | u32::from(down), from << 1 | u32::from(right)]
        })
    };
    let mut links: Vec<[u32; 2]> = (0..settings.degree << settings.scale).map(|_| link()).collect();
    links.par_sort_unstable();
    links.dedup();
    links
}
