"""Names and values of the recall and JSON tasks."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _words(
    """
    Anna Emma Jane Mary Elizabeth Fanny Catherine Harriet Maria Charlotte Lydia Kitty Julia Sarah Ruth
    Rachel Leah Martha Elinor Marianne Isabella Louisa Henrietta Sophia Eleanor Susan Lucy Margaret
    Penelope Augusta David Saul Samuel Moses Aaron Joshua Joseph Jacob Isaac Abraham Daniel Solomon
    Peter Paul John James Simon Philip Thomas Matthew Mark Luke Stephen Frank George Henry Edward Robert
    William Charles Frederick Walter Edmund Tom Crawford Bingley Darcy Collins Wickham Bennet Knightley
    Weston Elton Churchill Fairfax Bates Smith Martin Willoughby Brandon Dashwood Ferrars Jennings
    Norris Bertram Price Rushworth Yates Grant Tilney Thorpe Morland Allen Musgrove Wentworth Croft
    Benwick Harville Elliot Russell Jerusalem Babylon Egypt Israel Judah Bath London Hartfield Randalls
    Highbury Longbourn Meryton Netherfield Pemberley Rosings Barton Cleveland Norland Mansfield
    Portsmouth Sotherton Python Unix Windows
    """
)
"""Names that a value can be given to, most of them frequent in the corpus."""

VALUES = _words(
    """
    gold silver iron stone wood water fire bread wine oil salt milk honey wheat corn fruit meat fish
    bird horse dog lion lamb ox sheep tree river mountain sea island road bridge house garden field city
    gate wall tower tent table chair bed door window lamp book letter paper key ring crown sword bow
    ship wheel box bag cup bowl plate knife coat dress shoe hat glass mirror clock picture song music
    dance story name number line point circle red blue green white black brown yellow north south east
    west morning evening night summer winter spring rain snow wind cloud star moon sun earth sand dust
    king queen priest judge doctor servant soldier captain brother sister father mother son daughter
    child friend hand foot head heart eye ear mouth arm bone blood code file list string module class
    method object function value error test state thread queue package buffer
    """
)
"""Values: common nouns and colours. The tokenizer makes one token of each."""
