"""Why a row of a manifest is refused: one table of code, sentence and remedy. Knows no file formats.

A refused row gets exactly one reason, the first that is found. `{...}` is filled with what was found in the row.
"""

from typing import NamedTuple


class Reason(NamedTuple):
    """sentence: what is wrong, with the value that was found.  fix: what to do."""

    sentence: str
    fix: str


REASONS: dict[str, Reason] = {
    # the row as a whole
    "unreadable_row": Reason(
        "the row cannot be read: {why}", "write one JSON object a line, or as many cells as the header"
    ),
    "bad_encoding": Reason(
        "{field} is not valid Unicode text: {why}", "save the manifest as UTF-8, and write the text again"
    ),
    "not_an_object": Reason("the line is JSON, but {kind}, not an object", 'write {{"song_id": ..., "lyrics": ...}}'),
    "unknown_field": Reason("unknown field `{field}`", "{near}"),
    "conflicting_fields": Reason("{fields} are two values for one thing", "keep one of them"),
    "bad_type": Reason("`{field}` is {kind}, not text", "put the text in quotes"),
    # the id
    "missing_id": Reason("the row has no id", "give every song its own `song_id` (or `idx`)"),
    "bad_id": Reason("the id {why}", "use text of 1 to 512 characters with no space around it, or a whole number"),
    "duplicate_id": Reason(
        "this id, or one that differs only in case or Unicode form, stands in line {first} already", "rename one song"
    ),
    # how it is made
    "bad_gen_type": Reason("`gen_type` is {value}", "use one of: {known}"),
    "bad_seed": Reason("`seed` is {value}", "use a whole number from 0 to 2^63 - 1, or leave it out"),
    "bad_renditions": Reason("`renditions` is {value}", "use a whole number from 1 to {most}"),
    "bad_max_seconds": Reason(
        "`max_seconds` is {value}", "use a number from 1 to {most:g}, the longest song of this run and model"
    ),
    "prompt_recording": Reason(
        "`prompt_audio_path` asks for a prompt recording, and the encoder that makes tokens of it is not built yet",
        "give tokens that upstream's encoder made in `prompt_tokens` ([3, up to 250] as .npy, .safetensors or .pt), "
        "or an `auto_prompt_audio_type`, or say the style in `description`",
    ),
    "bad_prompt": Reason("`prompt_tokens`: {why}", "{fix}"),
    "bad_auto_prompt": Reason("`auto_prompt_audio_type` is {value}", "use one of: {known}"),
    "no_auto_prompt": Reason("this model has no automatic prompts for {kind}", "{fix}"),
    # the text
    "missing_lyrics": Reason(
        "the row has no lyrics", 'give `lyrics` (or `gt_lyric`), or "gen_type": "bgm" for an instrumental'
    ),
    "control_characters": Reason("`{field}` holds the invisible character {name}", "remove it"),
    "special_token": Reason(
        "`{field}` holds {token}, which the model reads as a command and not as text", "remove it from the text"
    ),
    "fullwidth_punctuation": Reason("`{field}` holds the full-width or typographic character {found}", "{write}"),
    "line_break": Reason("a line break stands inside {tag}", "join the lines of a section with '.'"),
    "no_tag": Reason(
        "the lyrics begin with '{found}', not with a structure tag", "begin with one, such as: [verse] {found}"
    ),
    "wrong_case_tag": Reason("{found} is not a structure tag: tags are lower case", "write {right}"),
    "unknown_tag": Reason("{found} is not a structure tag", "{near}"),
    "no_separator": Reason("no ';' stands before {tag}", "separate sections by ' ; '"),
    "tag_needs_text": Reason("{tag} (section {number}) has no words", "give it words, or remove the section"),
    "tag_without_text": Reason(
        "{tag} (section {number}) has words, and it is sung by nobody", "move them to a [verse], [chorus] or [bridge]"
    ),
    "no_vocal_section": Reason(
        "no section is sung: there is no [verse], [chorus] or [bridge]",
        'add one, or set "gen_type": "bgm" for an instrumental',
    ),
    "too_many_lyric_tokens": Reason(
        "the lyrics are {n} tokens, and this model takes {limit}", "shorten them or make two songs: nothing is cut here"
    ),
    "too_many_style_tokens": Reason(
        "the description is {n} tokens, and this model takes {limit}",
        "shorten it to the tags that matter: nothing is cut here",
    ),
}


class Refused(Exception):
    """A row cannot become a song. Carries the code, and its sentence and fix with the row's own values filled in."""

    def __init__(self, code: str, **found: object) -> None:
        reason = REASONS[code]
        self.code = code
        self.sentence = reason.sentence.format(**found)
        self.fix = reason.fix.format(**found)
        super().__init__(self.sentence)
