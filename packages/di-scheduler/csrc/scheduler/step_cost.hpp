// What a step is expected to take, by its rows and sequences.
#pragma once

#include <cstdint>
#include <vector>

namespace di::scheduler {

// Expected milliseconds of a step: a measured curve of the forward pass, corrected by what run-time
// calibration found (scheduler spec, 12.3): curve(rows) + slope * computed rows + sampler(num_seqs). A plain
// value.
class StepCost {
 public:
  // One stretch of the curve: rows first .. last cost milliseconds + per_row * (rows - first).
  struct Piece {
    std::int32_t first;
    std::int32_t last;
    double milliseconds;
    double per_row;
  };

  // Point i of the curve: a step of sizes[i] rows takes milliseconds[i]. Sizes are at least 1 and strictly
  // increasing, times finite and above 0; anything else throws SpeculationError.
  //
  // stepped: a step is padded to the smallest size that holds it (graphs), so it costs what that size costs,
  // and
  //   more rows than the last size are not possible.
  // not stepped: linear between points, the first time below the first point, and beyond the last point the
  // last
  //   slope, but never a falling one: a curve that noise bent down must not promise free rows.
  StepCost(std::vector<std::int32_t> sizes, std::vector<double> milliseconds, bool stepped);

  std::int32_t max_rows() const { return pieces_.back().last; }
  bool stepped() const { return stepped_; }

  // The piece that holds `rows`; the next piece, up to the one that ends with max_rows(), follows it in
  // memory. Throws SpeculationError unless 1 <= rows <= max_rows().
  const Piece* find(std::int32_t rows) const;

  // Rows that the device computes for a step of `rows`: `rows`, or the size that it is padded to.
  std::int32_t computed_rows(const Piece& piece, std::int32_t rows) const {
    return stepped_ ? piece.last : rows;
  }

  double curve_milliseconds(const Piece& piece, std::int32_t rows) const {
    return piece.milliseconds + piece.per_row * (rows - piece.first);
  }

  // Forward pass: the curve and the calibrated slope.
  double forward_milliseconds(const Piece& piece, std::int32_t rows) const {
    return curve_milliseconds(piece, rows) + slope_ * computed_rows(piece, rows);
  }

  double sampler_milliseconds(std::int32_t num_seqs) const;

  // The whole step. Throws SpeculationError unless 1 <= rows <= max_rows().
  double milliseconds(std::int32_t rows, std::int32_t num_seqs) const;

  // The size of the curve that a step of `rows` is counted under: the smallest that holds it, or the last
  // one.
  std::int32_t nearest_size(std::int32_t rows) const;

  // Milliseconds a row that the forward pass takes beyond the curve; at least 0.
  double slope() const { return slope_; }
  void set_slope(double milliseconds) { slope_ = milliseconds; }
  // What sampling for `num_seqs` sequences takes, and for a number without an entry of its own.
  void set_sampler(std::int32_t num_seqs, double milliseconds);
  void set_default_sampler(double milliseconds) { default_sampler_ = milliseconds; }

 private:
  std::vector<std::int32_t> sizes_;
  std::vector<Piece> pieces_;  // without gaps from row 1 on
  bool stepped_;
  double slope_ = 0.0;
  double default_sampler_ = 0.0;
  std::vector<double> sampler_;  // by number of sequences; below 0: none of its own
};

}  // namespace di::scheduler
