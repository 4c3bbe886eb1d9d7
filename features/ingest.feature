Feature: Ingest. A project has what the files of a directory are, and keeps up with them

  Background:
    Given a runtime with 1 workers and 0 fragments
    And a directory with code, prose, a conversation and a binary file
    And it was ingested

  Scenario: Files are split where a reader would
    Then the code is split at its definitions, the prose at its headings, and the conversation at its turns
    And every byte of a text is in exactly one fragment, which knows its lines
    And the binary file is reported, and the others are there

  Scenario: Nothing has changed
    When it is ingested again
    Then no file is read, and nothing is written

  Scenario Outline: What happens to a file happens to its fragments
    When a file is <deed>
    And it is ingested again
    Then the project is what a first ingest would make it

    Examples:
      | deed    |
      | added   |
      | changed |
      | deleted |
      | renamed |

  Scenario: Fragments that are lost are stored again
    When somebody deletes a fragment of a file
    And it is ingested again
    Then the project is what a first ingest would make it
