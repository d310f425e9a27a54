// The parts of DeathStarBench's two applications that these functions need: social network's MediaService, and MovieIdService of the
// media service with the two it calls.
namespace cpp services

struct Media {
  1: i64 media_id,
  2: string media_type
}

exception ServiceException {
  1: string message
}

service MediaService {
  list<Media> ComposeMedia(1: i64 req_id, 2: list<string> media_types, 3: list<i64> media_ids, 4: map<string, string> carrier)
    throws (1: ServiceException se)
}

service MovieIdService {
  void UploadMovieId(1: i64 req_id, 2: string title, 3: i32 rating, 4: map<string, string> carrier)
    throws (1: ServiceException se)
}

service ComposeReviewService {
  void UploadMovieId(1: i64 req_id, 2: string movie_id, 3: map<string, string> carrier) throws (1: ServiceException se)
}

service RatingService {
  void UploadRating(1: i64 req_id, 2: string movie_id, 3: i32 rating, 4: map<string, string> carrier)
    throws (1: ServiceException se)
}
