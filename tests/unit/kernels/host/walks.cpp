// Reads requests from standard input, one a line, and prints how the device headers hand out their tiles:
//   pieces TILES WORKERS TILE_STAGES CUTS                    -> whole pieces tickets begin...
//   halves TILES WORKERS HALVES                              -> tickets, then tile:half of each ticket
//   SOURCE BM EXPERTS ROWS MAX_M COUNT VALUES...             -> expert:row:count of each token tile, in order
#include "warp.h"

#include "chord/grouped_rows.cuh"
#include "chord/k_pieces.cuh"
#include "chord/last_wave.cuh"

#include <iostream>
#include <string>
#include <vector>

template <chord::RowSource kSource, int kBM>
void tiles(const chord::GroupedParams& p) {
  using Rows = chord::GroupedRows<kSource, kBM>;
  host::warp([&](int lane) {
    Rows rows(p, lane, typename Rows::Early{});
    for (int index = 0; index < rows.count(); ++index) {
      const auto tile = rows.at(index);
      if (lane == 0) std::cout << tile.expert << ':' << tile.id << ':' << rows.rows(tile) << ' ';
    }
  });
}

template <chord::RowSource kSource>
void tiles_of(int bm, const chord::GroupedParams& p) {
  if (bm == 8) tiles<kSource, 8>(p);
  if (bm == 16) tiles<kSource, 16>(p);
  if (bm == 128) tiles<kSource, 128>(p);
  if (bm == 256) tiles<kSource, 256>(p);
}

template <class T>
std::vector<T> numbers(size_t count) {
  std::vector<T> values(count);
  for (T& value : values) std::cin >> value;
  return values;
}

int main() {
  for (std::string kind; std::cin >> kind; std::cout << std::endl) {
    if (kind == "pieces") {
      const auto given = numbers<int>(4);
      const chord::KPieces pieces(given[0], given[1], given[2], given[3] != 0);
      std::cout << pieces.whole << ' ' << pieces.pieces << ' ' << pieces.tickets();
      for (int piece = 0; pieces.pieces && piece <= pieces.pieces; ++piece) std::cout << ' ' << pieces.begin(piece);
    } else if (kind == "halves") {
      const auto given = numbers<int>(3);
      const chord::LastWave wave(given[0], given[1], given[2] != 0);
      std::cout << wave.tickets;
      for (int ticket = 0; ticket < wave.tickets; ++ticket) std::cout << ' ' << wave.piece(ticket).tile << ':' << wave.piece(ticket).half;
    } else {
      const auto given = numbers<int>(5);
      const int bm = given[0], count = given[4];
      chord::GroupedParams p{nullptr, count, given[2], given[3], given[1]};
      if (kind == "offsets") {
        const auto values = numbers<int64_t>(count + 1);
        p.layout = values.data();
        tiles_of<chord::RowSource::kOffsets>(bm, p);
      } else {
        const auto values = numbers<int>(kind == "blocks" ? given[2] : count);
        p.layout = values.data();
        kind == "blocks" ? tiles_of<chord::RowSource::kBlocks>(bm, p) : tiles_of<chord::RowSource::kMasked>(bm, p);
      }
    }
  }
}
