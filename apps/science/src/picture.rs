//! A picture in memory that becomes a PNG file.

use std::{fs::File, io::BufWriter, path::Path};

use crate::{Error, Result};

/// An RGB picture; the first row is at the top.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    pixels: Vec<[u8; 3]>,
}

impl Picture {
    /// All of one colour.
    pub fn new(width: usize, height: usize, background: [u8; 3]) -> Self {
        Self { width, height, pixels: vec![background; width * height] }
    }

    /// Sets one pixel; those outside are ignored.
    pub fn set(&mut self, x: i64, y: i64, color: [u8; 3]) {
        if (0..self.width as i64).contains(&x) && (0..self.height as i64).contains(&y) {
            self.pixels[y as usize * self.width + x as usize] = color;
        }
    }

    /// Fills a disc.
    pub fn disc(&mut self, [x, y]: [f64; 2], radius: f64, color: [u8; 3]) {
        let reach = radius.ceil() as i64;
        for down in -reach..=reach {
            for right in -reach..=reach {
                let at = [x.floor() as i64 + right, y.floor() as i64 + down];
                let away = [at[0] as f64 + 0.5 - x, at[1] as f64 + 0.5 - y];
                if away[0] * away[0] + away[1] * away[1] <= radius * radius {
                    self.set(at[0], at[1], color);
                }
            }
        }
    }

    /// Writes a PNG file.
    pub fn save(&self, path: &Path) -> Result<()> {
        let file = BufWriter::new(File::create(path).map_err(Error::file("write", path))?);
        let mut encoder = png::Encoder::new(file, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(self.pixels.as_flattened())?;
        writer.finish()?;
        Ok(())
    }
}

/// A colour between dark blue (0), white (0.5) and dark red (1).
pub(crate) fn cold_to_hot(value: f64) -> [u8; 3] {
    let value = value.clamp(0.0, 1.0);
    let (from, to, part) = match value < 0.5 {
        true => ([24.0, 60.0, 140.0], [235.0, 235.0, 235.0], value * 2.0),
        false => ([235.0, 235.0, 235.0], [178.0, 16.0, 32.0], value * 2.0 - 1.0),
    };
    let mixed = |axis: usize| (from[axis] + (to[axis] - from[axis]) * part) as u8;
    [mixed(0), mixed(1), mixed(2)]
}
